"""Whatever is wrong with the platform, the host's application starts, its own tasks run, and nothing of it changes."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.conf import settings

from jobs.access.api_keys import create_key, revoke_key
from jobs.models import Role
from runs.models import WorkerNode
from tests.support.certificates import OwnCA
from tests.support.factories import make_pool, make_tenant
from tests.support.ports import free_port
from tests.support.processes import Processes, RealProcess
from tests.support.waiting import wait_until
from tests.system.adoption.adopter import DJANGO, FLASK, CodeBase
from tests.system.platform import our_connection

KEY = f"bk_0123456789ab_{'x' * 43}"


@pytest.fixture
def deaf() -> Iterator[int]:
    """Accept every connection and never answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


def shop(
    sample: Any, name: str, folder: Path, python: Path, processes: Processes, broker: str, **env: str
) -> CodeBase:
    code = CodeBase(sample, folder / name, python, processes, broker, f"{settings.QUEUE_PREFIX}.{name}")
    code.adopt()
    code.platform_is_at = {"BEATKEEPER_SPOOL_DIR": str(folder / name / "spool"), **env}
    return code


def test_own_tasks_run_whatever_is_wrong_with_the_platform(
    deaf: int,
    own_ca: OwnCA,
    api_port: int,
    adopter: Path,
    processes: Processes,
    tmp_path: Path,
    broker_url: str,
) -> None:
    pool = make_pool(slug="shop")
    refused, text = create_key(make_tenant(), "revoked", Role.WORKER, pool=pool)
    revoke_key(refused)
    ca = {"BEATKEEPER_CA_FILE": str(own_ca.ca), "BEATKEEPER_API_KEY": KEY}
    troubles: dict[str, tuple[dict[str, str], str]] = {
        "nothing-named": ({}, "no ledger is named"),
        "unencrypted": ({**ca, "BEATKEEPER_URL": "http://beatkeeper.example.com"}, "unencrypted"),
        "no-such-ca": (
            {**ca, "BEATKEEPER_URL": "https://x.invalid", "BEATKEEPER_CA_FILE": "/no/ca"},
            "There is no file",
        ),
        "nobody-there": ({**ca, "BEATKEEPER_URL": f"https://127.0.0.1:{free_port()}"}, "does not answer"),
        "never-answers": ({**ca, "BEATKEEPER_URL": f"https://127.0.0.1:{deaf}"}, ""),
        "key-refused": (
            {**ca, "BEATKEEPER_URL": f"https://localhost:{api_port}", "BEATKEEPER_API_KEY": text},
            "key",
        ),
        "no-database": (
            {"BEATKEEPER_DATABASE_URL": f"postgresql://127.0.0.1:{free_port()}/x"},
            "does not answer",
        ),
    }
    codes = {
        name: shop(FLASK, name, tmp_path, adopter, processes, broker_url, **env)
        for name, (env, _) in troubles.items()
    }
    workers = {name: code.worker("-n", f"{name}@{settings.TEST_ID}") for name, code in codes.items()}
    senders = [code.script(f"own.delay('{name}')") for name, code in codes.items()]
    assert [sender.wait(60) for sender in senders] == [0] * len(senders)
    for name, code in codes.items():
        wait_until(
            lambda code=code, name=name: code.noted(f"thanked for {name}"),  # type: ignore[misc]
            60,
            f"the own task of {name}; its worker wrote:\n{workers[name].text()[-3000:]}",
        )
    for name, (_, said) in troubles.items():
        workers[name].wait_for_output(said, 30)
        assert KEY not in workers[name].text() and text not in workers[name].text()
    for worker in workers.values():
        worker.popen.terminate()
    assert {name: worker.wait(40) for name, worker in workers.items()} == dict.fromkeys(workers, 0)


def test_code_that_asks_gets_one_error_in_time(
    deaf: int, own_ca: OwnCA, adopter: Path, processes: Processes, tmp_path: Path, broker_url: str
) -> None:
    """As a web request would."""
    env = {
        "BEATKEEPER_URL": f"https://127.0.0.1:{deaf}",
        "BEATKEEPER_API_KEY": KEY,
        "BEATKEEPER_CA_FILE": str(own_ca.ca),
        "BEATKEEPER_REQUEST_SECONDS": "1",
    }
    code = shop(FLASK, "asks", tmp_path, adopter, processes, broker_url, **env)
    began = time.monotonic()
    script = code.script(
        "from beatkeeper import PlatformAway\n"
        "try:\n    planned.run_now()\n"
        "except PlatformAway as away:\n    print('away:', away)\n"
    )
    assert script.wait(60) == 0, script.text()
    assert "away: " in script.text() and KEY not in script.text()
    # One second is stated; the rest is the start of a process on a busy machine.
    assert time.monotonic() - began < 40
    commands = [code.beatkeeper(act) for act in ("plan", "drift", "apply")]
    assert [command.wait(60) for command in commands] == [2, 2, 2]


def test_a_platform_that_comes_later_knows_the_worker_then(
    own_ca: OwnCA, adopter: Path, processes: Processes, tmp_path: Path, broker_url: str, api_port: int
) -> None:
    pool = make_pool(slug="shop", shared=False, exported_tasks=[])
    tenant = make_tenant()
    pool.tenants.add(tenant)
    _key, text = create_key(tenant, "worker", Role.WORKER, pool=pool)
    port = free_port()
    env = {
        "BEATKEEPER_URL": f"https://localhost:{port}",
        "BEATKEEPER_API_KEY": text,
        "BEATKEEPER_CA_FILE": str(own_ca.ca),
        "BEATKEEPER_BEAT_SECONDS": "0.5",
    }
    code = shop(FLASK, "waits", tmp_path, adopter, processes, broker_url, **env)
    worker = code.worker()
    worker.wait_for_output("does not answer", 40)
    assert not known(pool)
    # The address leads to the platform from now on.
    relay = processes.python("tests.system.relay", str(port), str(api_port))
    wait_until(
        lambda: known(pool), 30, f"the worker to be known; it wrote:\n{worker.text()[-3000:]}{relay.text()}"
    )
    assert worker.terminate() == 0


def known(pool: Any) -> bool:
    with our_connection():
        return WorkerNode.objects.filter(pool=pool).exists()


@pytest.mark.parametrize("sample", [FLASK, DJANGO], ids=["flask", "django"])
def test_no_setting_of_the_host_changes(
    sample: Any, adopter: Path, processes: Processes, tmp_path: Path, broker_url: str
) -> None:
    """All of Celery's settings, and what the worker makes of them: its queues, its prefetch, its acks."""
    before = CodeBase(
        sample, tmp_path / "before", adopter, processes, broker_url, f"{settings.QUEUE_PREFIX}.host"
    )
    after = CodeBase(
        sample, tmp_path / "after", adopter, processes, broker_url, f"{settings.QUEUE_PREFIX}.host"
    )
    after.adopt()
    after.platform_is_at = {"BEATKEEPER_URL": "https://127.0.0.1:1", "BEATKEEPER_API_KEY": KEY}
    shown = [settings_of(code) for code in (before, after)]
    wanted, found = (json.loads(script.text().splitlines()[-1]) for script in shown if script.wait(40) == 0)
    assert found == wanted
    names = [f"{settings.TEST_ID}-{name}@host" for name in ("before", "after")]
    workers = [code.worker("-n", name) for code, name in zip((before, after), names, strict=True)]
    for worker in workers:
        worker.wait_for_output("ready.", 40)
    inspections = inspected(broker_url, names)
    assert inspections[0] == inspections[1]
    assert inspections[0]["prefetch"] == 8, "two slots, four each"
    for worker in workers:
        assert worker.terminate() == 0


def settings_of(code: CodeBase) -> RealProcess:
    return code.script(
        "import json\n"
        "app = own.app\n"
        "app.finalize()\n"
        "acks = {name: [task.acks_late, task.ignore_result, task.time_limit, task.rate_limit, task.Request]\n"
        "        for name, task in app.tasks.items() if name != 'beatkeeper.run'}\n"
        "paths = str(app.conf.table()).replace('/before/', '/').replace('/after/', '/')\n"
        "print(json.dumps([paths, {name: repr(value) for name, value in sorted(acks.items())}]))"
    )


def inspected(broker_url: str, names: list[str]) -> list[dict[str, Any]]:
    with Celery("asks", broker=broker_url, set_as_current=False) as app:
        inspect = app.control.inspect(destination=names, timeout=10)
        stats, queues = inspect.stats() or {}, inspect.active_queues() or {}
    return [
        {
            "prefetch": stats[name]["prefetch_count"],
            "slots": stats[name]["pool"]["max-concurrency"],
            "queues": [queue["name"] for queue in queues[name]],
        }
        for name in names
    ]
