"""A small shop: Flask for people, Celery for what takes longer. Several years in production."""

import os

from flask import Flask

from .extensions import celery
from .pages import pages


def create_app() -> Flask:
    app = Flask(__name__)
    app.config.update(
        DATABASE=os.environ["SHOP_DATABASE"],
        CELERY={
            "broker_url": os.environ["SHOP_BROKER_URL"],
            "task_default_queue": os.environ["SHOP_QUEUE"],
            "task_ignore_result": True,
            "worker_prefetch_multiplier": 4,
            "broker_connection_retry_on_startup": True,
        },
    )
    celery.config_from_object(app.config["CELERY"])
    celery.flask_app = app
    app.register_blueprint(pages)
    return app
