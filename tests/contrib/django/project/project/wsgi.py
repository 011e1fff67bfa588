from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
application = get_wsgi_application()
if "SHOP_PUBLISH_EARLY" in os.environ:
    # With --preload this runs in gunicorn's master, before it forks its workers.
    from nsq.contrib.django import publish

    publish("orders", b"from the master")
