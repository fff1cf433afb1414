"""The settings of the project that the tests use; variables choose the databases and the queue."""

import json
import os
from pathlib import Path
from typing import Any

import django

SECRET_KEY = "only for tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "grocersite.urls"
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
    "grocer",
]
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")

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

SQLITE = {"ENGINE": "django.db.backends.sqlite3"}
DATABASES: dict[str, Any] = json.loads(
    os.environ.get("SHOP_DATABASES") or json.dumps({"default": {**SQLITE, "NAME": ":memory:"}})
)
TASKS = {
    "default": {
        "BACKEND": "pollwise.contrib.django.backend.PollwiseBackend",
        "QUEUES": ["default", "slow"],
    }
}
POLLWISE: dict[str, Any] = json.loads(
    os.environ.get("SHOP_POLLWISE") or '{"queue": {"database": "default", "keep": "1h"}}'
)
BASE_DIR = Path(__file__).parent.parent
