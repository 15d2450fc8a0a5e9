"""`make up` as a newcomer meets it: real processes, nothing set, a state folder of the test's own."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
import psycopg
import pytest
from django.conf import settings

from scheduler_project.standalone.postgres import EmbeddedPostgres
from scheduler_project.standalone.state import unprivileged_account
from tests.support.ports import free_port
from tests.support.processes import CHECKOUT, Processes, RealProcess
from tests.support.waiting import wait_until

NOTHING_SET: dict[str, str | None] = dict.fromkeys(
    ("SECRET_KEY", "DATABASE_URL", "CELERY_BROKER_URL", "DJANGO_SETTINGS_MODULE", "BEATKEEPER_QUEUE_PREFIX")
)
LAST_LINE = "Ctrl-C stops it."
LONG_ONE = "of 120; sleep 5"
DOWN_SECONDS = 5.0


class Product:
    """One running copy of `make up` with its output."""

    def __init__(
        self, processes: Processes, state: Path, port: int = 0, env: dict[str, str | None] = NOTHING_SET
    ) -> None:
        self.port = port or free_port()
        self.state = state
        self.supervisor: RealProcess = processes.start(
            *(sys.executable, "manage.py", "standalone"),
            *("--port", str(self.port), "--state-dir", str(state)),
            env=env,
            name="standalone",
        )

    def wait_started(self) -> None:
        self.supervisor.wait_for_output(LAST_LINE, 120)

    def printed(self, word: str) -> str:
        found = re.search(rf"^{word}: (.+)$", self.supervisor.text(), re.MULTILINE)
        assert found, f"no line begins with {word}: in\n{self.supervisor.text()}"
        return found[1]

    def request(self, path: str, method: str = "GET", body: Any = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.printed('key')}"}
        answer = call(method, self.printed("api") + path, headers=headers, json=body)
        assert answer.is_success, answer.text
        return answer

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        return self.request(path, method, body).json()

    def job(self, name: str) -> str:
        """Return the id of a job."""
        return str(next(job["id"] for job in self.ask("/jobs")["results"] if job["name"] == name))

    def run_in(self, state: str, job: str, timeout: float = 60) -> Any:
        """Wait for the first run of the job in the state."""
        runs = wait_until(
            lambda: self.ask(f"/runs?job={job}&state={state}")["results"], timeout, f"a run that is {state}"
        )
        return runs[-1]

    def family(self) -> dict[int, str]:
        """Return every process below the supervisor, in whatever session."""
        listed = subprocess.run(
            ["ps", "-axwwo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
        )
        rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
        members = {self.supervisor.pid: "supervisor"}
        while True:
            more = {int(row[0]): row[2] for row in rows if len(row) == 3 and int(row[1]) in members}
            if more.keys() <= members.keys():
                return members
            members |= more

    def family_at_work(self) -> list[int]:
        """Start a long run, and return all processes."""
        self.ask(f"/jobs/{self.job('long-one-to-cancel')}/run", "POST")
        wait_until(lambda: self.pids_of(LONG_ONE), 60, "the process of the long one")
        return list(self.family())

    def pids_of(self, words: str) -> list[int]:
        return sorted(pid for pid, command in self.family().items() if words in command)


def living(pids: list[int]) -> list[int]:
    """Return the living processes, without zombies."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,stat=", "-p", ",".join(map(str, pids))], capture_output=True, text=True
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(pid) for pid, status in rows if not status.startswith("Z")]


def make_open_folder() -> Path:
    """Return a folder that is open to the account that runs PostgreSQL for root, unlike tmp_path."""
    path = Path(mkdtemp(prefix=f"bk-standalone-{settings.TEST_ID}-"))
    path.chmod(0o755)
    return path


@pytest.fixture
def state() -> Iterator[Path]:
    path = make_open_folder()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def processes(state: Path, tmp_path: Path) -> Iterator[Processes]:
    """Stop the copies, in order, before their folder is removed."""
    started = Processes(tmp_path)
    yield started
    for process in started:
        process.terminate(90)


@pytest.fixture
def product(processes: Processes, state: Path) -> Product:
    """Start a copy for one test, which may stop it."""
    product = Product(processes, state)
    product.wait_started()
    return product


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """Start a copy for the tests that leave it running."""
    processes, state = Processes(tmp_path_factory.mktemp("running")), make_open_folder()
    product = Product(processes, state)
    try:
        product.wait_started()
        yield product
    finally:
        product.supervisor.terminate(90)
        shutil.rmtree(state, ignore_errors=True)


def test_everything_it_prints_is_true(running: Product) -> None:
    assert running.printed("admin") == f"http://127.0.0.1:{running.port}/admin/"
    assert running.printed("api") == f"http://127.0.0.1:{running.port}/api/v1"
    assert running.ask("/jobs")["results"]
    assert "Password" in call("GET", running.printed("admin")).text
    curl_lines = [line for line in running.supervisor.text().splitlines() if line.startswith("curl ")]
    assert len(curl_lines) == 3
    for line in curl_lines:
        answer = subprocess.run([*shlex.split(line), "--fail"], capture_output=True, text=True)
        assert answer.returncode == 0, f"{line}\n{answer.stderr}"
    secrets = [running.state / name for name in ("credentials.json", "secret_key", "settings.json")]
    assert [path.stat().st_mode & 0o777 for path in secrets] == [0o600] * 3


def test_manage_py_works_on_what_it_started_without_any_setting(running: Product) -> None:
    running.run_in("succeeded", running.job("hello-every-5-seconds"))
    done = manage(running.state, "doctor", "--no-color")
    assert "all is well" in done.stdout and done.returncode == 0, done.stdout + done.stderr
    shown = manage(running.state, "shell", "-c", "from jobs.models import Job; print(Job.objects.count())")
    assert shown.stdout.split()[-1] == str(job_count(running)), shown.stdout + shown.stderr


def test_the_demo_does_what_it_says(running: Product) -> None:
    failing = running.ask(f"/jobs/{running.job('fails-and-retries')}/run", "POST")
    soon = (datetime.now(UTC) + timedelta(seconds=2)).isoformat(timespec="milliseconds")
    target = {"kind": "command", "argv": ["echo", "once"]}
    once = running.ask("/jobs", "POST", {"name": "once", "target": target, "schedule": {"at": soon}})

    hello = running.run_in("succeeded", running.job("hello-every-5-seconds"))
    assert "Hello, Beatkeeper" in running.request(f"/runs/{hello['id']}/log").text

    long_one = running.run_in("running", running.job("long-one-to-cancel"))
    (body,) = wait_until(lambda: running.pids_of(LONG_ONE), 60, "the process of the long one")
    running.ask(f"/runs/{long_one['id']}/cancel", "POST")
    running.run_in("cancelled", running.job("long-one-to-cancel"))
    assert living([body]) == []

    assert running.run_in("succeeded", once["id"])["planned_at"]
    assert len(running.ask(f"/runs?job={once['id']}")["results"]) == 1
    wait_until(lambda: running.ask(f"/runs/{failing['id']}")["state"] == "dead", 60, "the end of its retries")
    assert len(running.ask(f"/runs/{failing['id']}/attempts")["results"]) == 3


def test_with_servers_of_their_own_it_starts_none(
    processes: Processes, state: Path, private_database_url: str, broker_url: str
) -> None:
    env = NOTHING_SET | {
        "DATABASE_URL": private_database_url,
        "CELERY_BROKER_URL": broker_url,
        "BEATKEEPER_QUEUE_PREFIX": settings.QUEUE_PREFIX,
    }
    product = Product(processes, state, env=env)
    product.wait_started()
    product.run_in("succeeded", product.job("hello-every-5-seconds"))
    assert product.pids_of("celery -A scheduler_project worker")
    assert not (state / "postgresql").exists()
    # The address of a database that is not its own is not kept.
    assert not (state / "settings.json").exists()
    family = list(product.family())
    assert product.supervisor.terminate(90) == 0
    assert living(family) == []


def test_a_child_that_is_killed_is_started_again(running: Product) -> None:
    before = running.pids_of("manage serve")[0]
    os.kill(before, signal.SIGKILL)
    running.supervisor.wait_for_output("api was killed by SIGKILL; starting it again in 1 s")
    wait_until(lambda: answers_health(running.port), what="the API after its death")
    assert before not in running.pids_of("manage serve")
    os.kill(postgres_pid(running), signal.SIGKILL)
    running.supervisor.wait_for_output("PostgreSQL ended; starting it again")
    wait_until(lambda: job_count(running), what="the database after its death")


def test_a_second_copy_is_refused_and_the_first_goes_on(running: Product, processes: Processes) -> None:
    second = Product(processes, running.state)
    assert second.supervisor.wait() == 2
    assert second.supervisor.text().splitlines() == [
        f"{running.state} is in use by another copy (process {running.supervisor.pid}); `make down` stops it"
    ]
    assert answers_health(running.port)


def test_ctrl_c_leaves_nothing_running_and_a_second_start_continues(
    product: Product, processes: Processes
) -> None:
    family = product.family_at_work()
    key, login = product.printed("key"), product.printed("login")
    jobs = job_count(product)
    product.supervisor.send(signal.SIGINT)
    assert product.supervisor.wait(90) == 0
    assert living(family) == []
    again = Product(processes, product.state, product.port)
    again.wait_started()
    assert (again.printed("key"), again.printed("login")) == (key, login)
    assert job_count(again) == jobs


def test_down_stops_it_and_says_so_when_there_is_nothing_to_stop(product: Product) -> None:
    family = list(product.family())
    assert down(product) == "stopped\n"
    # It gives up its lock a moment before it is gone itself.
    assert product.supervisor.wait() == 0
    assert living(family) == []
    assert down(product) == f"nothing runs from {product.state}\n"
    refused = manage(product.state, "doctor", "--no-color")
    assert "does not answer" in refused.stdout and refused.returncode == 1, refused.stdout + refused.stderr
    assert "do: run `make up`" in refused.stdout


def test_down_answers_at_once_and_the_next_start_takes_the_long_run_up_again(
    product: Product, processes: Processes
) -> None:
    family = product.family_at_work()
    run = product.run_in("running", product.job("long-one-to-cancel"))["id"]
    began = time.monotonic()
    assert down(product) == "stopped\n"
    assert time.monotonic() - began < DOWN_SECONDS
    assert product.supervisor.wait() == 0 and living(family) == []

    again = Product(processes, product.state, product.port)
    again.wait_started()
    wait_until(lambda: len(attempts(again, run)) == 2, 60, "the run to be taken up again")
    assert [attempt["state"] for attempt in attempts(again, run)] == ["given_back", "running"]
    # What was given back counts as no attempt.
    assert again.ask(f"/runs/{run}")["attempt"] == 1
    wait_until(lambda: again.pids_of(LONG_ONE), 60, "the process of the long one")


def test_a_supervisor_killed_with_sigkill_takes_everything_with_it(
    product: Product, processes: Processes
) -> None:
    family = product.family_at_work()
    product.supervisor.send(signal.SIGKILL)
    wait_until(lambda: not living(family), 60, "the end of everything")
    again = Product(processes, product.state, product.port)
    again.wait_started()


def test_a_taken_port_is_refused_before_anything_is_started(processes: Processes, state: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        product = Product(processes, state, port)
        assert product.supervisor.wait() == 2
    assert product.supervisor.text().splitlines() == [
        f"port {port} is taken by another program: choose another one, as in `make up PORT=8001`"
    ]
    assert not (state / "postgresql").exists()


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(processes: Processes, state: Path) -> None:
    (state / "file").touch()
    product = Product(processes, state / "file" / "below")
    assert product.supervisor.wait() == 2
    (line,) = product.supervisor.text().splitlines()
    assert line.startswith(f"cannot write to {state}/file/below")


def test_a_database_that_does_not_answer_is_refused_without_its_password(
    processes: Processes, state: Path
) -> None:
    env = NOTHING_SET | {"DATABASE_URL": f"postgresql://me:very-secret@127.0.0.1:{free_port()}/none"}
    command = [
        sys.executable,
        "manage.py",
        "standalone",
        "--port",
        str(free_port()),
        "--state-dir",
        str(state),
    ]
    product = processes.start(*command, env=env)
    assert product.wait() == 2
    assert product.text().startswith("the database of DATABASE_URL does not answer: ")
    assert "very-secret" not in product.text()
    assert "Traceback" not in product.text()


def test_an_embedded_database_of_before_is_refused_and_left_as_it_is(
    processes: Processes, state: Path
) -> None:
    old = EmbeddedPostgres(state / "postgresql", unprivileged_account())
    old.start()
    with psycopg.connect(old.url()) as connection:
        connection.execute(
            "CREATE TABLE django_migrations (id int, app text, name text, applied timestamptz)"
        )
        connection.execute(
            "INSERT INTO django_migrations VALUES (1, 'beatkeeper_runs', '0012_ready_order', now())"
        )
    old.stop()
    product = Product(processes, state)
    assert product.supervisor.wait(60) == 2
    refusal = product.supervisor.text().splitlines()[-1]
    assert "made by a version from before 0.1.0 (migration beatkeeper_runs.0012_ready_order)" in refusal
    assert f"move {state} away and start again (nothing was changed or deleted)" in refusal
    old.start()
    try:
        with psycopg.connect(old.url()) as connection:
            tables = connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            ).fetchall()
    finally:
        old.stop()
    assert tables == [("django_migrations",)]


def manage(state: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a management command where nothing but the state folder is named."""
    ours = ("BEATKEEPER_", *NOTHING_SET)
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=CHECKOUT,
        env=env | {"BEATKEEPER_STATE_DIR": str(state)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def down(product: Product) -> str:
    command = [sys.executable, "manage.py", "standalone", "--stop", "--state-dir", str(product.state)]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout


def attempts(product: Product, run: str) -> list[Any]:
    return list(product.ask(f"/runs/{run}/attempts")["results"])


def call(method: str, url: str, **details: Any) -> httpx.Response:
    """Send a request past any proxy of the machine."""
    with httpx.Client(trust_env=False, follow_redirects=True, timeout=10) as client:
        return client.request(method, url, **details)


def answers_health(port: int) -> bool:
    try:
        return call("GET", f"http://127.0.0.1:{port}/healthz").status_code == 200
    except httpx.HTTPError:
        return False


def job_count(product: Product) -> int:
    try:
        return len(product.ask("/jobs")["results"])
    except (httpx.HTTPError, AssertionError):
        return 0


def postgres_pid(product: Product) -> int:
    pid_file = product.state / "postgresql" / "cluster" / "data" / "postmaster.pid"
    return int(pid_file.read_text().split()[0])
