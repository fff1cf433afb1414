"""The settings of the project. What is about Pollwise is at the end."""

import os
from pathlib import Path

import django

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = os.environ.get("BAKERY_SECRET_KEY", "only for development")
DEBUG = "BAKERY_SECRET_KEY" not in os.environ
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "bakerysite.urls"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "pollwise.contrib.django",
    "bakery",
]
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")  # part of Django since version 6

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",  # or postgresql, in production
        "NAME": os.environ.get("BAKERY_DATABASE", BASE_DIR / "bakery.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
    }
}

TASKS = {"default": {"BACKEND": "pollwise.contrib.django.backend.PollwiseBackend"}}
#: Jobs are rows of the default database; those that ended are kept for a day.
POLLWISE = {"queue": {"database": "default", "keep": "1d"}, "worker": {"concurrency": 4}}
