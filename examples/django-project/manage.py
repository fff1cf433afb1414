"""The commands of the project: `python manage.py migrate`, `runserver`, `pollwise_worker`."""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bakerysite.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
