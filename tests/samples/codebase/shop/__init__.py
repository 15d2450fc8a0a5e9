"""A shop's own Celery app, older than its scheduler."""
