"""Settings. Everything that differs between installations comes from the environment (docs/reference/settings.md)."""

import logging
import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured
from django.templatetags.static import static

from scheduler_project import env
from scheduler_project.sdk.logs.store import SCHEMES as LOG_STORE_SCHEMES
from scheduler_project.sdk.logs.store import folder_of
from scheduler_project.sdk.transport.broker_tls import with_ca

BASE_DIR = Path(__file__).resolve().parent.parent

DEBUG = env.boolean("BEATKEEPER_DEBUG", False)
SECRET_KEY = env.text("SECRET_KEY")
if not SECRET_KEY:
    raise ImproperlyConfigured(
        "SECRET_KEY is not set: put a long random text into the environment, or start with `make up`"
    )
# Of the tenants' secrets: the first encrypts, each decrypts. Without one no secret can be saved.
ENCRYPTION_KEYS = env.encryption_keys("ENCRYPTION_KEYS")
ALLOWED_HOSTS = env.names("BEATKEEPER_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
CSRF_TRUSTED_ORIGINS = env.names("BEATKEEPER_TRUSTED_ORIGINS")
# How many of our own proxies stand before the API: so many hops of X-Forwarded-For are believed.
TRUSTED_PROXIES = env.integer("BEATKEEPER_TRUSTED_PROXIES", 0, 0, 10)
# Of one tenant's keys together, if the tenant has no number of its own; and with wrong keys from one address. 0: any.
REQUESTS_PER_MINUTE = env.integer("BEATKEEPER_REQUESTS_PER_MINUTE", 30_000, 0, 10_000_000)
WRONG_KEYS_PER_MINUTE = env.integer("BEATKEEPER_WRONG_KEYS_PER_MINUTE", 60, 0, 10_000_000)
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if TRUSTED_PROXIES else None

_database = env.database("DATABASE_URL")
if not _database:
    raise ImproperlyConfigured(
        "DATABASE_URL is not set: use postgresql://user:password@host:5432/name, or start with `make up`"
    )
# Works behind a transaction pooler: no server-side cursors, no prepared statements.
_database["DISABLE_SERVER_SIDE_CURSORS"] = True
_database["CONN_MAX_AGE"] = env.integer("BEATKEEPER_CONN_MAX_AGE", 60, 0, 86_400)
_database["CONN_HEALTH_CHECKS"] = True
DATABASES = {"default": _database}
DATABASE_URL = env.text("DATABASE_URL")
# Schedulers hold session locks and therefore go past a pooler.
DATABASE_DIRECT_URL = env.postgres_url("DATABASE_DIRECT_URL", DATABASE_URL)
# Whom to trust where brokers speak TLS; what a URL says itself goes before it.
BROKER_CA_FILE = env.readable_file("BEATKEEPER_BROKER_CA_FILE")
CELERY_BROKER_URL = with_ca(
    env.broker_url("CELERY_BROKER_URL", env.text("CELERY_BROKER_URL")), BROKER_CA_FILE
)
# Brokers beside the platform's own, which pools may name; and what their queues are, by name, "" for the others.
BROKERS = {name: with_ca(url, BROKER_CA_FILE) for name, url in env.brokers("BEATKEEPER_BROKERS").items()}
# RabbitMQ's management API, with an administrator's login: `manage.py broker_user` makes users there.
BROKER_API_URL = env.url("BEATKEEPER_BROKER_API_URL", "", ("https", "http"))
QUEUE_TYPES = env.queue_types("BEATKEEPER_QUEUE_TYPE", BROKERS)
# Another code base's django-celery-beat, if its rows are to be served (docs/how-to/celery-beat.md).
CELERY_BEAT_URL = env.postgres_url("BEATKEEPER_CELERY_BEAT_URL", "")
CELERY_BEAT_BROKER_URL = (
    with_ca(env.text("BEATKEEPER_CELERY_BEAT_BROKER_URL"), BROKER_CA_FILE) or CELERY_BROKER_URL
)
CELERY_BEAT_QUEUE = env.text("BEATKEEPER_CELERY_BEAT_QUEUE") or "celery"
CELERY_BEAT_RESEND = env.choice("BEATKEEPER_CELERY_BEAT_UNKNOWN", "resend", ("resend", "drop")) == "resend"
CELERY_BEAT_KEEP_DAYS = env.number("BEATKEEPER_CELERY_BEAT_KEEP_DAYS", 7, 0.01, 3650)
if CELERY_BEAT_URL and not CELERY_BEAT_BROKER_URL:
    raise ImproperlyConfigured(
        "BEATKEEPER_CELERY_BEAT_URL is set, and no broker: say in BEATKEEPER_CELERY_BEAT_BROKER_URL where the workers "
        "of those periodic tasks listen"
    )
if CELERY_BEAT_URL and CELERY_BEAT_URL != DATABASE_URL:
    DATABASES["celery_beat"] = {**env.database("BEATKEEPER_CELERY_BEAT_URL"), "CONN_HEALTH_CHECKS": True}
LOG_STORE_URL = env.url("LOG_STORE_URL", f"file://{BASE_DIR}/var/logs", LOG_STORE_SCHEMES)

INSTALLED_APPS = [
    "unfold",
    "unfold.contrib.filters",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "auditlog.apps.AuditlogConfig",
    "jobs.apps.JobsConfig",
    "runs.apps.RunsConfig",
    "scheduler_project.apps.ProjectConfig",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.middleware.gzip.GZipMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "auditlog.middleware.AuditContextMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "scheduler_project.urls"
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
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_REDIRECT_URL = "admin:index"
LANGUAGE_CODE = "en"
USE_I18N = False
TIME_ZONE = "UTC"
STATIC_URL = "static/"
# Without a folder of collected files they are served from where the packages keep them.
STATIC_ROOT = env.text("BEATKEEPER_STATIC_ROOT") or None
WHITENOISE_USE_FINDERS = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env.boolean("BEATKEEPER_SECURE_COOKIES", False)
DATA_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["jobs.api.authentication.ApiKeyAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["jobs.api.authentication.RolePermission"],
    "DEFAULT_THROTTLE_CLASSES": ["jobs.api.throttling.RequestLimits"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["scheduler_project.api.parsers.JsonBody"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "scheduler_project.api.parsers.JsonAlways",
    "DEFAULT_PAGINATION_CLASS": "scheduler_project.api.pagination.NewestFirst",
    "DEFAULT_FILTER_BACKENDS": ["scheduler_project.api.filters.StrictFilterBackend"],
    "URL_FORMAT_OVERRIDE": None,
    # The OpenAPI document describes the API: OPTIONS is answered by 405, with the methods that there are.
    "DEFAULT_METADATA_CLASS": None,
    "DEFAULT_SCHEMA_CLASS": "jobs.api.openapi.ViewSchema",
    "EXCEPTION_HANDLER": "scheduler_project.api.problems.problem",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Beatkeeper",
    "DESCRIPTION": "Register jobs; each planned time has exactly one run and an outcome.",
    "VERSION": "v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_AUTHENTICATION": [],
    "SERVE_PERMISSIONS": [],
    "POSTPROCESSING_HOOKS": ["scheduler_project.api.openapi.document.complete"],
    "COMPONENT_SPLIT_PATCH": False,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "persistAuthorization": True, "docExpansion": "list"},
}
UNFOLD = {
    "SITE_TITLE": "Beatkeeper",
    "SITE_HEADER": "Beatkeeper",
    "SITE_SYMBOL": "schedule",
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("jobs/favicon.svg")}
    ],
    "STYLES": [lambda request: static("jobs/admin.css")],
    "SHOW_HISTORY": False,
    "SHOW_VIEW_ON_SITE": False,
    "LOGIN": {"form": "scheduler_project.admin.login.LoginForm"},
    "DASHBOARD_CALLBACK": "scheduler_project.admin.dashboard.dashboard",
    "SIDEBAR": {"navigation": "scheduler_project.admin.navigation.navigation"},
}

# Times that decide who may work on a run. Tests shorten them; they keep their order.
LEASE_SECONDS = env.number("BEATKEEPER_LEASE_SECONDS", 30, 2, 3600)
BEAT_SECONDS = env.number("BEATKEEPER_BEAT_SECONDS", 5, 0.2, 600)
FENCE_MARGIN_SECONDS = env.number("BEATKEEPER_FENCE_MARGIN_SECONDS", 5, 1, 600)
if BEAT_SECONDS + FENCE_MARGIN_SECONDS >= LEASE_SECONDS:
    raise ImproperlyConfigured(
        "BEATKEEPER_LEASE_SECONDS must be above BEATKEEPER_BEAT_SECONDS + BEATKEEPER_FENCE_MARGIN_SECONDS"
    )
FEED_AFTER_SECONDS = env.number("BEATKEEPER_FEED_AFTER_SECONDS", 1, 0, 60)
STARVATION_BOUND_SECONDS = env.integer("BEATKEEPER_STARVATION_BOUND", 300, 1, 86_400)
MISFIRE_GRACE_SECONDS = env.number("BEATKEEPER_MISFIRE_GRACE_SECONDS", 60, 5, 3600)
HOT_PERIOD_DAYS = env.integer("BEATKEEPER_HOT_PERIOD_DAYS", 30, 3, 400)
PARTITIONS_AHEAD_DAYS = env.integer("BEATKEEPER_PARTITIONS_AHEAD_DAYS", 14, 8, 100)
MAX_WORKER_LOSSES = env.integer("BEATKEEPER_MAX_WORKER_LOSSES", 3, 1, 100)
SPOOL_DIR = env.text("BEATKEEPER_SPOOL_DIR", str(BASE_DIR / "var" / "spool"))
# Where others reach the API: among them the targets of HTTP jobs, which report an outcome later.
PUBLIC_URL = env.url("BEATKEEPER_PUBLIC_URL", "http://127.0.0.1:8000", ("http", "https")).rstrip("/")
COMMANDS_AS_WORKER = env.boolean("BEATKEEPER_COMMANDS_AS_WORKER", False)
COMMAND_LIMITS = env.numbers(
    "BEATKEEPER_COMMAND_LIMITS",
    {
        "cpu_seconds": 0,
        "memory_mb": 8192,
        "open_files": 4096,
        "processes": 512,
        "file_size_mb": 4096,
        "tmp_mb": 256,
    },
)
COMMAND_FOLDERS = env.folders(
    "BEATKEEPER_COMMAND_FOLDERS",
    project=str(BASE_DIR),
    private={"the spool": SPOOL_DIR, "the folder of logs": folder_of(LOG_STORE_URL)},
)
COMMAND_NETWORK = env.boolean("BEATKEEPER_COMMAND_NETWORK", True)
POOL = env.text("BEATKEEPER_POOL", "default")
QUEUE_PREFIX = env.text("BEATKEEPER_QUEUE_PREFIX", "bk")


def without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "filters": {
        "without_traceback": {"()": "django.utils.log.CallbackFilter", "callback": without_traceback}
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {
        "handlers": ["stderr"],
        "level": env.choice("BEATKEEPER_LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR")),
    },
    # At INFO they log whole URLs, at DEBUG headers: both may hold the tenants' keys.
    "loggers": {
        "httpx": {"level": "WARNING"},
        "httpcore": {"level": "WARNING"},
        # Strangers cause it at will, and the message says all.
        "django.security.DisallowedHost": {"filters": ["without_traceback"]},
    },
}

if SENTRY_DSN := env.url("SENTRY_DSN", "", ("https", "http")):
    import sentry_sdk

    from scheduler_project.sdk.secret_values.masking import masked_event

    # A request's body and a frame's variables may hold a tenant's secret; what a run prints is masked. So is what it
    # does, when it does it: an event takes that along after the run has ended.
    sentry_sdk.init(
        dsn=SENTRY_DSN,
        send_default_pii=False,
        max_request_body_size="never",
        include_local_variables=False,
        before_send=masked_event,
        before_breadcrumb=masked_event,
    )

os.environ.setdefault("CELERY_APP", "scheduler_project")
