"""Probes of Pollwise's own queues and outboxes, by the cheap views of their stores."""
