"""The commands `manage.py pollwise_worker` and `manage.py pollwise_outbox`."""
