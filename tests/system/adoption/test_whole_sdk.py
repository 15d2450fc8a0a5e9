"""Everything that README and the SDK's page name, against a real platform, over HTTPS and over its database.

One platform, and for each link a worker and other processes of `whole_sdk.py`. The last tests compare that file with
the pages and with the signatures: an option or a method that it does not use fails them.
"""

import ast
import inspect
import re
import ssl
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest

from jobs.access.api_keys import create_key
from jobs.calendars.service import create_calendar
from jobs.models import Job, Pool, Role, Tenant
from runs.models import Run
from runs.services.runs import run_now
from scheduler_project import sdk
from scheduler_project.sdk.__main__ import parser
from scheduler_project.sdk.declarations.job_options import JobOptions
from scheduler_project.sdk.declarations.retry_options import BREAKER_KEYS, RETRY_KEYS
from tests.support.certificates import OwnCA
from tests.support.factories import make_pool, make_tenant, now, post_job
from tests.support.ports import free_port
from tests.support.processes import CHECKOUT, PYTHON, Processes, RealProcess
from tests.support.servers.api import serve
from tests.system.platform import Platform, our_connection

MODULE = "tests.system.adoption.whole_sdk"
JOBS = 10
CALL = f"from {MODULE} import call_everything; call_everything()"
COMMANDS = (
    ("plan", "--app", MODULE),
    ("apply", "-A", MODULE, "--prune"),
    ("drift", "--app", MODULE, "--json"),
)
TARGETS = {
    "http": {"kind": "http", "method": "GET", "url": "https://example.com/"},
    "command": {"kind": "command", "argv": ["true"]},
}


class Shop:
    """A team of the platform: its tenant, its pool and its keys, and the environment of its processes."""

    def __init__(self, platform: Platform, link: str, url: str, own_ca: OwnCA, at: datetime) -> None:
        self.platform, self.link = platform, link
        self.tenant: Tenant = make_tenant(slug=f"{link}-team")
        kinds = ["http", "command"] if link == "database" else []
        self.pool: Pool = make_pool(
            slug=f"{link}-pool", shared=False, exported_tasks=[], exported_kinds=kinds
        )
        self.pool.tenants.add(self.tenant)
        create_calendar(self.tenant, {"name": "days", "dates": ["2026-12-25"]})
        self.admin_key = create_key(self.tenant, "admin", Role.ADMIN)[1]
        self.key = create_key(self.tenant, "worker", Role.WORKER, pool=self.pool)[1]
        ours = ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "CELERY_BROKER_URL", "SECRET_KEY")
        self.common = {
            **platform.env(),
            **dict.fromkeys((*ours, "BEATKEEPER_DATABASE_URL")),
            "SHOP_BROKER_URL": platform.broker_url,
            "SHOP_QUEUE": f"{platform.own_queue}-{link}",
            "SHOP_AT": at.isoformat(),
            "SHOP_LOCAL_AT": at.astimezone(ZoneInfo("America/New_York")).replace(tzinfo=None).isoformat(),
            "SHOP_SIGN": str(platform.folder / f"{link}.sign"),
        }
        spool = str(platform.spool / link)
        if link == "https":
            self.by_code: dict[str, str | None] = {
                "SHOP_URL": url,
                "SHOP_KEY": self.key,
                "SHOP_CA_FILE": str(own_ca.ca),
                "SHOP_SPOOL": spool,
            }
            self.by_environment: dict[str, str | None] = {
                "BEATKEEPER_URL": url,
                "BEATKEEPER_API_KEY": self.key,
                "BEATKEEPER_CA_FILE": str(own_ca.ca),
                "BEATKEEPER_REQUEST_SECONDS": "20",
            }
        else:
            names = {"SHOP_TENANT": self.tenant.slug, "SHOP_POOL": self.pool.slug}
            self.by_code = {
                **names,
                "SHOP_DATABASE_URL": platform.database_url,
                "SHOP_LOG_STORE": platform.log_store_url,
                "BEATKEEPER_SPOOL_DIR": spool,
                "BEATKEEPER_BROKER_URL": platform.broker_url,
                "BEATKEEPER_LEASE_SECONDS": "6",
                "BEATKEEPER_BEAT_SECONDS": "1",
                "BEATKEEPER_FENCE_MARGIN_SECONDS": "2.5",
                "BEATKEEPER_GRACE_SECONDS": "1",
            }
            self.by_environment = {**names, "BEATKEEPER_DATABASE_URL": platform.database_url}

    def worker(self, processes: Processes) -> RealProcess:
        pool = ["-P", "threads"] if self.link == "database" else []
        words = ["-A", MODULE, "worker", "-l", "info", "-c", "4", "-n", f"{self.link}@%h", *pool]
        env = {**self.common, **self.by_code, "SHOP_LINK": self.link}
        return processes.python("celery", *words, env=env, name=f"worker-{self.link}")

    def start(self, processes: Processes, *words: str) -> RealProcess:
        env = {**self.common, **self.by_environment, "SHOP_LINK": "environment"}
        return processes.start(PYTHON, *words, env=env, name=self.link)

    def command(self, processes: Processes, *words: str) -> RealProcess:
        return self.start(processes, "-m", "scheduler_project.sdk", *words)

    def jobs(self) -> list[Job]:
        with our_connection():
            return list(Job.objects.of(self.tenant).filter(declarations__isnull=False))


@pytest.fixture
def url(platform: Platform, own_ca: OwnCA, processes: Processes) -> str:
    port = free_port()
    serve(processes, port, platform.env(), ca=own_ca)
    return f"https://localhost:{port}"


def test_every_option_and_method_works_over_both_links(
    platform: Platform, url: str, own_ca: OwnCA, processes: Processes
) -> None:
    at = now().replace(microsecond=0) + timedelta(seconds=30)
    shops = [Shop(platform, link, url, own_ca, at) for link in ("https", "database")]
    platform.scheduler()
    workers = [shop.worker(processes) for shop in shops]
    # Over the database the deploy declares, over HTTPS the worker's start.
    ended(shops[1].command(processes, "apply", "--app", MODULE))
    for shop in shops:
        platform.wait(lambda shop=shop: len(shop.jobs()) == JOBS, 60, "the declared jobs")  # type: ignore[misc]

    calls = [shop.start(processes, "-c", CALL) for shop in shops]
    assert result_of(platform, shops[1], "http") == "instead of a call, http"
    assert result_of(platform, shops[1], "command") == "instead of a command"
    for call in calls:
        assert "all came out as it should" in ended(call, 150)
    for shop in shops:
        ran_at = Run.objects.filter(job__tenant=shop.tenant, planned_at=at, state="succeeded")
        for name in ("once", "once_by_the_clock"):
            of_task = ran_at.filter(job__name=f"{MODULE}.{name}")
            platform.wait(of_task.exists, 60, "the run of `at=`")
        assert_declared_as_written(shop, url, own_ca)

    for plan, apply, drift in [[shop.command(processes, *words) for words in COMMANDS] for shop in shops]:
        assert f"0 no longer declared, 0 drifted, {JOBS} unchanged." in ended(plan)
        assert "Applied: 0 of 0." in ended(apply)
        assert ended(drift).strip() == "[]"
    assert all(worker.is_alive() for worker in workers)


def ended(process: RealProcess, timeout: float = 60) -> str:
    assert process.wait(timeout) == 0, process.text()
    return process.text()


def result_of(platform: Platform, shop: Shop, kind: str) -> object:
    """Run a job of another kind than a task, by what the code base executes that kind with."""
    with our_connection():
        job = post_job(shop.tenant, name=kind, target=TARGETS[kind], pool=shop.pool.slug)
        run_now(job, request=b"1")
    return platform.run_of(job, "succeeded", 60)["result"]


def assert_declared_as_written(shop: Shop, url: str, own_ca: OwnCA) -> None:
    tls = ssl.create_default_context(cafile=str(own_ca.ca))
    with httpx.Client(
        verify=tls, trust_env=False, headers={"Authorization": f"Bearer {shop.admin_key}"}
    ) as api:
        found = {job["name"]: job for job in api.get(f"{url}/api/v1/jobs?limit=100").json()["results"]}
    yearly, daily, fails_once = found["yearly"], found[f"{MODULE}.daily"], found[f"{MODULE}.fails_once"]
    assert (yearly["description"], yearly["tags"]) == ("Closes the year", {"team": "shop"})
    schedule = yearly["schedule"]
    assert (schedule["cron"], schedule["timezone"], schedule["jitter"]) == (
        "0 5 1 2 *",
        "America/New_York",
        "PT5M",
    )
    assert schedule["calendar"] == {"name": "days", "on_closed": "next"}
    assert (schedule["begins_at"][:10], schedule["ends_at"][:10]) == ("2026-01-01", "2040-01-01")
    assert (daily["priority"], daily["timeout"], daily["overlap"]) == (700, "PT30S", "allow_all")
    assert (daily["max_concurrency"], daily["catch_up"]["policy"]) == (2, "skip")
    assert (daily["target"]["args"], daily["target"]["kwargs"]) == (["a"], {"day": 1})
    assert daily["schedule"]["every"] and daily["retry"]["max_attempts"] == 3
    assert (fails_once["retry"]["max_attempts"], fails_once["breaker"]["failures"]) == (2, 50)


# What is named, and what is used.

README, PAGE = CHECKOUT / "README.md", CHECKOUT / "docs" / "how-to" / "celery-code-base.md"
CODE = ast.parse((CHECKOUT / "tests" / "system" / "adoption" / "whole_sdk.py").read_text())
THIS = ast.parse(Path(__file__).read_text())
# Methods and properties of a keeper for our own worker and commands, which use them here.
OF_THE_WORKER = {
    *("broker_url", "ca_file", "config", "declarations", "ledger_url", "link", "pool", "slots", "source"),
    *("spool_folder", "url", "work_in"),
}
# `run.wait(timeout=30).result`, but not `beatkeeper.run`.
CHAIN = re.compile(
    r"(?<![\w.])(?:keeper|settle|run)((?:\.[a-z_]+(?:\([^)]*\))?)+)|`((?:\.[a-z_]+\([^)]*\))+)`"
)


def keywords(function: str) -> set[str]:
    """Return the names of the arguments that the code base gives in calls of this function or method."""
    calls = [node for node in ast.walk(CODE) if isinstance(node, ast.Call)]
    ours = [node for node in calls if getattr(node.func, "attr", getattr(node.func, "id", "")) == function]
    return {keyword.arg for node in ours for keyword in node.keywords if keyword.arg}


def used(tree: ast.AST = CODE) -> set[str]:
    """Return attributes, names and texts."""
    found = [(getattr(node, "attr", ""), getattr(node, "id", ""), texts(node)) for node in ast.walk(tree)]
    return {name for names in found for name in names}


def texts(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def parameters(function: Any, *without: str) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self", *without}


def public(owner: type) -> set[str]:
    return {name for name in {*vars(owner), *owner.__annotations__} if not name.startswith("_")}


def column(heading: str, number: int) -> set[str]:
    """Return the names in a column of the table below a heading of the page."""
    below = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in below.splitlines() if line.startswith("| ")]
    cells = [row.split("|")[number] for row in rows[1:]]
    return set(re.findall(r"`(\w+)", " ".join(cells)))


def named_in_chains() -> set[str]:
    found = chain.from_iterable(CHAIN.findall(README.read_text() + PAGE.read_text()))
    return set(re.findall(r"\.([a-z_]+)", " ".join(re.sub(r"\([^)]*\)", "", each) for each in found)))


def test_the_pages_are_read() -> None:
    """The patterns above find what is known to be there."""
    assert {"name", "cron", "retry", "catch_up"} <= column("What `@keeper.job` takes", 1)
    assert {"url", "lease_seconds"} <= column("Settings", 1)
    assert {"BEATKEEPER_URL", "BEATKEEPER_LEASE_SECONDS"} <= column("Settings", 2)
    assert {"job", "run_now", "schedule", "delay", "wait", "result", "requested"} <= named_in_chains()


def test_every_argument_of_a_keeper_is_used() -> None:
    named = column("Settings", 1) | parameters(sdk.Beatkeeper, "app")
    assert named - keywords("Beatkeeper") == set()


def test_every_option_of_a_job_is_used() -> None:
    named = column("What `@keeper.job` takes", 1) | set(JobOptions.__annotations__) | {"name"}
    assert named - keywords("job") == set()
    assert {*RETRY_KEYS, *BREAKER_KEYS} - used() == set()


@pytest.mark.parametrize("method", ["run_now", "schedule"])
def test_every_argument_of_a_request_is_used(method: str) -> None:
    assert parameters(getattr(sdk.Beatkeeper, method), "task") - keywords(method) == set()


def test_every_method_and_attribute_is_used() -> None:
    named = named_in_chains() | (public(sdk.Beatkeeper) - OF_THE_WORKER) | public(sdk.RequestedRun)
    assert (named | set(sdk.__all__)) - used() == set()


def test_every_command_and_variable_is_used() -> None:
    acts = next(action.choices for action in parser()._actions if isinstance(action.choices, dict))
    options = {option for act in acts.values() for option in act._option_string_actions} - {"-h", "--help"}
    variables = set(re.findall(r"BEATKEEPER_[A-Z_]+[A-Z]", README.read_text() + PAGE.read_text()))
    assert (set(acts) | options | variables | column("Settings", 2)) - used(THIS) == set()
