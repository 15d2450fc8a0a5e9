"""For `flask --app wsgi run` and `celery -A wsgi.celery worker`."""

from shop import create_app
from shop.extensions import celery

app = create_app()

__all__ = ["app", "celery"]
