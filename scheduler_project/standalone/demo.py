"""Create a demo tenant with a few jobs, once: what somebody changed or deleted is not restored."""

import json
import secrets
from datetime import datetime, timedelta
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from django.contrib.auth.models import User
from django.db import transaction

from auditlog.context import acting_as
from auditlog.models import ActorKind
from jobs.access.api_keys import create_key, find_key
from jobs.access.pools import record_saved
from jobs.clock import database_now
from jobs.errors import DomainError
from jobs.models import Job, Pool, Tenant
from jobs.services.definition import create_job, edit_job
from jobs.validation.instants import as_text
from scheduler_project.sdk.shared.folder import write_privately

TENANT = "demo"
POOL = "default"
TASKS = ["demo.flaky", "demo.hello"]
KINDS = ["command", "http"]
CALL = "http-call-to-itself"
Credentials = dict[str, str]
Made = TypeVar("Made", Tenant, Pool)


def make_demo(credentials_file: Path, public_url: str) -> list[str]:
    """Create what is missing. Return what could not be created, and why."""
    with acting_as(ActorKind.SYSTEM, "demo"):
        tenant = _kept(Tenant, TENANT, name="Demo", allowed_hosts=[urlsplit(public_url).netloc])
        about = "The platform's own workers"
        _kept(Pool, POOL, description=about, shared=True, exported_tasks=TASKS, exported_kinds=KINDS)
        troubles = [trouble for spec in specs(public_url, database_now()) if (trouble := _job(tenant, spec))]
        _call_the_present_address(tenant, public_url)
        # Login and API key stay the same at every start as long as they are valid.
        known = _read(credentials_file)
        found = {**_login(known), "api_key": _key(tenant, known.get("api_key", ""))}
        if found != known:
            write_privately(credentials_file, json.dumps(found, indent=2))
    return troubles


def specs(public_url: str, now: datetime) -> list[dict[str, Any]]:
    soon = as_text(now.replace(microsecond=0) + timedelta(seconds=15))
    return [
        {
            "name": "hello-every-5-seconds",
            "description": "A Celery task on a fixed interval. What it prints and logs is in the log of each run.",
            "target": {"kind": "celery", "task": "demo.hello", "args": [], "kwargs": {"name": "Beatkeeper"}},
            "schedule": {"every": 5},
            "timeout": 60,
        },
        {
            "name": "cron-every-minute",
            "description": "A cron expression with a zone.",
            "target": {"kind": "celery", "task": "demo.hello", "args": ["New York"], "kwargs": {}},
            "schedule": {"cron": "* * * * *", "timezone": "America/New_York"},
            "timeout": 60,
        },
        {
            "name": "fails-and-retries",
            "description": "Each run tries three times, a few seconds apart, and ends dead.",
            "target": {"kind": "celery", "task": "demo.flaky", "args": [], "kwargs": {}},
            "schedule": {"every": 60},
            "timeout": 60,
            "retry": {"max_attempts": 3, "backoff": "exponential", "base": 2, "cap": 10},
        },
        {
            "name": CALL,
            "description": "An HTTP call to this very API, which the tenant's allow-list lets through.",
            "target": {"kind": "http", "method": "GET", "url": address(public_url), "expect": [200]},
            "schedule": {"every": 30},
            "timeout": 20,
        },
        {
            "name": "long-one-to-cancel",
            "description": "A command that takes ten minutes: cancel its run, and its process is gone.",
            "target": {
                "kind": "command",
                "argv": ["sh", "-c", "for i in $(seq 120); do echo step $i of 120; sleep 5; done"],
            },
            "schedule": {"every": 900, "begins_at": soon},
            "timeout": 1800,
            "overlap": "skip",
        },
    ]


def address(public_url: str) -> str:
    return f"{public_url.rstrip('/')}/healthz"


@transaction.atomic
def _kept(model: type[Made], slug: str, **values: Any) -> Made:
    """Return the row of this name, created with these values unless it exists."""
    row, made = model._default_manager.get_or_create(slug=slug, defaults=values)
    if made:
        record_saved(row, None)
    return row


def _job(tenant: Tenant, spec: dict[str, Any]) -> str:
    """Create a job unless it exists or was deleted; return why it could not be created."""
    if Job.objects.filter(tenant=tenant, name=spec["name"]).exists():
        return ""
    try:
        create_job(tenant, {**spec, "pool": POOL, "tags": {"demo": "yes"}})
    except DomainError as refused:
        return f"{spec['name']}: {refused}"
    return ""


@transaction.atomic
def _call_the_present_address(tenant: Tenant, public_url: str) -> None:
    """Point the demo's HTTP call to the current address: the port may have changed since the last start."""
    host, job = urlsplit(public_url).netloc, Job.objects.of(tenant).filter(name=CALL).first()
    if job is None:
        return
    if host not in tenant.allowed_hosts:
        Tenant.objects.filter(pk=tenant.pk).update(allowed_hosts=[*tenant.allowed_hosts, host])
    target = job.spec.target
    if target.get("kind") == "http" and target["url"] != address(public_url):
        edit_job(job, {"target": {**target, "url": address(public_url)}})


def _login(known: Credentials) -> Credentials:
    name, password = known.get("admin_user", ""), known.get("admin_password", "")
    user = User.objects.filter(username=name).first()
    if user and user.check_password(password):
        return {"admin_user": name, "admin_password": password}
    # Never overwrite a password that somebody else set.
    taken = set(User.objects.filter(username__startswith="admin").values_list("username", flat=True))
    names = chain(["admin"], (f"admin{number}" for number in count(2)))
    name = next(name for name in names if name not in taken)
    password = secrets.token_urlsafe(12)
    User.objects.create_superuser(name, password=password)
    return {"admin_user": name, "admin_password": password}


def _key(tenant: Tenant, text: str) -> str:
    key = find_key(text) if text else None
    return text if key and key.tenant_id == tenant.pk else create_key(tenant, "demo")[1]


def _read(file: Path) -> Credentials:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
