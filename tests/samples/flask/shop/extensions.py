"""Made without an app, as Flask's extensions are; create_app gives them their settings."""

from celery import Celery, Task


class InAppContext(Task):
    """Every task of the shop runs with the Flask app at hand."""

    abstract = True

    def __call__(self, *args, **kwargs):
        with self.app.flask_app.app_context():
            return self.run(*args, **kwargs)


celery = Celery("shop", task_cls=InAppContext, include=["shop.tasks"])
