"""A demo tenant with a handful of telling jobs. Made once; what somebody changed or deleted stays so."""

import json
import os
import secrets
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.contrib.auth.models import User
from django.db import transaction

from auditlog.context import acting_as
from auditlog.models import ActorKind
from jobs.database_clock import database_now
from jobs.instants import as_text
from jobs.models import Job, Pool, Tenant
from jobs.platform import record_saved
from jobs.refusals import Refused
from jobs.services import create_job, edit_job
from jobs.tenants import create_key, find_key

TENANT = "demo"
POOL = "default"
TASKS = ["demo.flaky", "demo.hello"]
KINDS = ["command", "http"]
CALL = "http-call-to-itself"
Credentials = dict[str, str]


def make_demo(credentials_file: Path, public_url: str) -> list[str]:
    """Everything that is not there yet. Returns what could not be made, and why."""
    with acting_as(ActorKind.SYSTEM, "demo"):
        tenant = _tenant(urlsplit(public_url).netloc)
        _pool()
        troubles = [trouble for spec in specs(public_url, database_now()) if (trouble := _job(tenant, spec))]
        _call_the_present_address(tenant, public_url)
        _credentials(tenant, credentials_file)
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
            "schedule": {"every": 900, "start": soon},
            "timeout": 1800,
            "overlap": "skip",
        },
    ]


def address(public_url: str) -> str:
    return f"{public_url.rstrip('/')}/healthz"


@transaction.atomic
def _tenant(own_host: str) -> Tenant:
    tenant, made = Tenant.objects.get_or_create(
        slug=TENANT, defaults={"name": "Demo", "allowed_hosts": [own_host]}
    )
    if made:
        record_saved(tenant, None)
    return tenant


@transaction.atomic
def _pool() -> Pool:
    values = {
        "description": "The platform's own workers",
        "shared": True,
        "exported_tasks": TASKS,
        "exported_kinds": KINDS,
    }
    pool, made = Pool.objects.get_or_create(slug=POOL, defaults=values)
    if made:
        record_saved(pool, None)
    return pool


def _job(tenant: Tenant, spec: dict[str, Any]) -> str:
    """Why it could not be made, or nothing. One that was deleted is not made again."""
    if Job.objects.filter(tenant=tenant, name=spec["name"]).exists():
        return ""
    try:
        create_job(tenant, {**spec, "pool": POOL, "tags": {"demo": "yes"}})
    except Refused as refused:
        return f"{spec['name']}: {refused}"
    return ""


@transaction.atomic
def _call_the_present_address(tenant: Tenant, public_url: str) -> None:
    """The port may be another one than at the last start."""
    host, job = urlsplit(public_url).netloc, Job.objects.of(tenant).filter(name=CALL).first()
    if job is None:
        return
    if host not in tenant.allowed_hosts:
        Tenant.objects.filter(pk=tenant.pk).update(allowed_hosts=[*tenant.allowed_hosts, host])
    target = job.spec.target
    if target.get("kind") == "http" and target["url"] != address(public_url):
        edit_job(job, {"target": {**target, "url": address(public_url)}})


def _credentials(tenant: Tenant, file: Path) -> Credentials:
    """The same at every start, as long as they are good."""
    known = _read(file)
    found = {**_login(known), "api_key": _key(tenant, known.get("api_key", ""))}
    if found != known:
        _write(file, found)
    return found


def _login(known: Credentials) -> Credentials:
    name, password = known.get("admin_user", ""), known.get("admin_password", "")
    user = User.objects.filter(username=name).first()
    if user and user.check_password(password):
        return {"admin_user": name, "admin_password": password}
    # A password that is not ours is never overwritten.
    taken = set(User.objects.filter(username__startswith="admin").values_list("username", flat=True))
    name = next(name for name in _names() if name not in taken)
    password = secrets.token_urlsafe(12)
    User.objects.create_superuser(name, password=password)
    return {"admin_user": name, "admin_password": password}


def _names() -> Any:
    yield "admin"
    number = 2
    while True:
        yield f"admin{number}"
        number += 1


def _key(tenant: Tenant, text: str) -> str:
    key = find_key(text) if text else None
    return text if key and key.tenant_id == tenant.pk else create_key(tenant, "demo")[1]


def _read(file: Path) -> Credentials:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Path, found: Credentials) -> None:
    """Whole or not at all, and readable by its owner alone from the first byte."""
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as text:
        json.dump(found, text, indent=2)
    draft.replace(file)
