"""Settings of the tests: a database of this run's own on a real PostgreSQL."""

import os
import secrets

# Child processes started by a test inherit the name, so that they talk to the same database and queues.
TEST_ID = os.environ.setdefault("BEATKEEPER_TEST_ID", secrets.token_hex(4))
os.environ.setdefault("SECRET_KEY", "only-for-tests-and-not-a-secret-0123456789abcdef")
os.environ.setdefault("DATABASE_URL", "postgresql://root@127.0.0.1:5432/postgres")
os.environ.setdefault("ENCRYPTION_KEYS", "b25seSBmb3IgdGVzdHMsIGFuZCBub3QgYSBzZWNyZXQ=")
os.environ.setdefault("BEATKEEPER_LOG_LEVEL", "WARNING")
os.environ.setdefault("BEATKEEPER_QUEUE_PREFIX", f"bk-{TEST_ID}")
# A test that wants a broker says so (fixture `broker_url`); the others meet none.
LOCAL_BROKER = "amqp://guest:guest@127.0.0.1:5672//"
TEST_BROKER_URL = os.environ.setdefault(
    "BEATKEEPER_TEST_BROKER_URL", os.environ.pop("CELERY_BROKER_URL", "") or LOCAL_BROKER
)

from scheduler_project.settings import *  # noqa: E402, F403
from scheduler_project.settings import DATABASES  # noqa: E402

DATABASES["default"]["TEST"] = {"NAME": f"beatkeeper_test_{TEST_ID}"}
DATABASES["default"]["CONN_MAX_AGE"] = 0
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
