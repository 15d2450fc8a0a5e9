"""For `celery -A tests.samples.factory.wsgi.celery`: who imports it has an application."""

from .extensions import celery

celery.application = "made by wsgi"  # type: ignore[attr-defined]
