import os

SECRET_KEY = "only-for-tests-and-not-a-secret"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "auditlog",
    "appointments",
    "jobs",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["CLINIC_DATABASE"],
        "OPTIONS": {"timeout": 30},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
AUDITLOG_INCLUDE_ALL_MODELS = True

CELERY_BROKER_URL = os.environ["CLINIC_BROKER_URL"]
CELERY_TASK_DEFAULT_QUEUE = os.environ["CLINIC_QUEUE"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_TIME_LIMIT = 20
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
