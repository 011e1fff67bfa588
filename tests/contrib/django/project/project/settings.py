"""A small shop. The tests name its nsqd and its database in the environment."""

from __future__ import annotations

import os

import django

SECRET_KEY = "only for tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
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
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TASKS = {
    "default": {"BACKEND": "nsq.contrib.django.NsqBackend", "OPTIONS": {"THREADS": 2}},
    "committed": {
        "BACKEND": "nsq.contrib.django.NsqBackend",
        "QUEUES": ["mails"],
        "OPTIONS": {"ENQUEUE_ON_COMMIT": True},
    },
}
if django.VERSION < (6,):
    TASKS = {}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "nsq.contrib.django",
    "nsq.contrib.django.results",
    "nsq.contrib.django.outbox",
    "nsq.contrib.django.once",
    "shop",
    *os.environ.get("SHOP_APPS", "").split(),
]

NSQ: dict[str, object] = {"NSQD": os.environ.get("SHOP_NSQD", "127.0.0.1:1").split(",")}

if "SHOP_PUBLISH_TIMEOUT" in os.environ:
    NSQ["OPTIONS"] = {"publish_timeout": float(os.environ["SHOP_PUBLISH_TIMEOUT"])}
if "SHOP_BACKEND" in os.environ:
    NSQ["BACKEND"] = os.environ["SHOP_BACKEND"]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_SQLITE", ":memory:"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        "CONN_MAX_AGE": 60,
    }
}
if "SHOP_POSTGRES" in os.environ:
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ["SHOP_POSTGRES"],
        "NAME": "postgres",
        "USER": "postgres",
        "CONN_MAX_AGE": 0 if "SHOP_POOL" in os.environ else 60,
        "OPTIONS": {"pool": {"min_size": 1, "max_size": 4}} if "SHOP_POOL" in os.environ else {},
    }
