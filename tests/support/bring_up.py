"""Runs a command with a real PostgreSQL and RabbitMQ at hand: `python -m tests.support.bring_up make pytest`.

For each the first that works: what the environment names, what runs on its usual port, a container, and
private instances of the programs installed here (as root, missing ones are installed first).
"""

import getpass
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import amqp
import psycopg
from kombu.utils.url import parse_url

from scheduler_project.standalone.state import CannotStart
from tests.support import leftovers, npm
from tests.support.servers import rabbitmq as private_rabbitmq
from tests.support.servers.postgres import PrivatePostgres
from tests.support.servers.rabbitmq import PrivateRabbitMQ

COMPOSE_FILE = Path(__file__).resolve().parents[1] / "docker-compose.yml"
POSTGRES_VERSION = 15
# Debian's package -> the program that shows it is there.
PACKAGES = {
    "rabbitmq-server": "",
    "redis-server": "redis-server",
    "pgbouncer": "pgbouncer",
    "chromium": "chromium",
    "bubblewrap": "bwrap",
    "nodejs": "node",
    "npm": "npm",
}


@dataclass(frozen=True)
class Service:
    url: str
    described: str


def main(command: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ.setdefault("BEATKEEPER_TEST_ID", secrets.token_hex(4))
    with ExitStack() as stack:
        try:
            install_missing_packages()
            if why_not := npm.install():
                say(f"the npm packages of the tests are not installed: {why_not}")
            postgres, rabbitmq = servers(stack)
        except CannotStart as reason:
            say(str(reason))
            return 2
        stack.callback(leftovers.remove, os.environ["BEATKEEPER_TEST_ID"], postgres.url, rabbitmq.url)
        say(f"services: {postgres.described}; {rabbitmq.described}; {programs()}")
        env = {**os.environ, "DATABASE_URL": postgres.url, "BEATKEEPER_TEST_BROKER_URL": rabbitmq.url}
        env.pop("CELERY_BROKER_URL", None)
        try:
            return subprocess.run(command, env=env).returncode
        except KeyboardInterrupt:
            return 130


def servers(stack: ExitStack) -> tuple[Service, Service]:
    postgres, rabbitmq = given_postgres() or running_postgres(), given_rabbitmq() or running_rabbitmq()
    if (postgres is None or rabbitmq is None) and engine_answers():
        containers = stack.enter_context(in_containers())
        postgres, rabbitmq = postgres or containers[0], rabbitmq or containers[1]
    return (
        postgres or stack.enter_context(own_postgres()),
        rabbitmq or stack.enter_context(own_rabbitmq()),
    )


def given_postgres() -> Service | None:
    url = os.environ.get("DATABASE_URL")
    if not url:
        return None
    return reach_postgres(url, "DATABASE_URL") or refuse(
        "DATABASE_URL is set, but no such PostgreSQL answers"
    )


def running_postgres() -> Service | None:
    me = getpass.getuser()
    for url in (
        f"postgresql://{me}@127.0.0.1:5432/postgres",
        "postgresql://postgres:postgres@127.0.0.1:5432/postgres",
        f"postgresql://{me}@/postgres?host=/var/run/postgresql",
    ):
        if service := reach_postgres(url, "running"):
            return service
    return None


def reach_postgres(url: str, origin: str) -> Service | None:
    """Only one that lets us create databases and is new enough to be of use."""
    question = "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
    try:
        with psycopg.connect(url, connect_timeout=3) as connection:
            (may_create,) = connection.execute(question).fetchone() or (False,)
            version = connection.info.server_version
            place = f"{connection.info.host}:{connection.info.port}"
    except psycopg.Error:
        return None
    if not may_create or version < POSTGRES_VERSION * 10_000:
        return None
    return Service(url, f"PostgreSQL {version // 10_000}.{version % 10_000} ({origin}, {place})")


def given_rabbitmq() -> Service | None:
    url = os.environ.get("CELERY_BROKER_URL") or os.environ.get("BEATKEEPER_TEST_BROKER_URL")
    if not url:
        return None
    found = reach_rabbitmq(url, "CELERY_BROKER_URL")
    return found or refuse("CELERY_BROKER_URL is set, but no such RabbitMQ answers")


def running_rabbitmq() -> Service | None:
    return reach_rabbitmq("amqp://guest:guest@127.0.0.1:5672//", "running")


def reach_rabbitmq(url: str, origin: str) -> Service | None:
    address = parse_url(url)
    place = f"{address['hostname']}:{address['port'] or 5672}"
    try:
        with amqp.Connection(
            place,
            address["userid"] or "guest",
            address["password"] or "guest",
            virtual_host=address["virtual_host"] or "/",
            connect_timeout=3,
        ) as connection:
            version = connection.server_properties["version"]  # type: ignore[attr-defined] # missing in the stubs
    except (OSError, amqp.AMQPError):
        return None
    return Service(url, f"RabbitMQ {version} ({origin}, {place})")


def engine_answers() -> bool:
    for question in (["docker", "info"], ["docker", "compose", "version"]):
        try:
            if subprocess.run(question, capture_output=True, timeout=20).returncode != 0:
                return False
        except (OSError, subprocess.TimeoutExpired):
            return False
    return True


@contextmanager
def in_containers() -> Iterator[tuple[Service | None, Service | None]]:
    """Nothing when the images cannot be had; the next way is taken then."""
    name = f"beatkeeper-test-{os.environ['BEATKEEPER_TEST_ID']}"
    compose = ["docker", "compose", "--project-name", name, "--file", str(COMPOSE_FILE)]

    def place(service: str, port: str) -> str:
        answer = subprocess.run([*compose, "port", service, port], capture_output=True, text=True, check=True)
        return answer.stdout.strip()

    try:
        if subprocess.run([*compose, "up", "--detach", "--wait", "--quiet-pull"]).returncode != 0:
            yield None, None
            return
        postgres_url = f"postgresql://postgres:postgres@{place('postgres', '5432')}/postgres"
        rabbitmq_url = f"amqp://guest:guest@{place('rabbitmq', '5672')}//"
        yield reach_postgres(postgres_url, "container"), reach_rabbitmq(rabbitmq_url, "container")
    finally:
        subprocess.run([*compose, "down", "--volumes", "--timeout", "5"], capture_output=True)


@contextmanager
def own_postgres() -> Iterator[Service]:
    """From the system's packages, else from the wheel that the environment holds."""
    with PrivatePostgres() as server:
        yield reach_postgres(server.url, "private") or refuse("our own PostgreSQL does not answer")


@contextmanager
def own_rabbitmq() -> Iterator[Service]:
    if private_rabbitmq.system_binaries() is None:
        raise CannotStart(
            "RabbitMQ is neither running nor installed: run `sudo apt-get install rabbitmq-server`, "
            "or name one with CELERY_BROKER_URL"
        )
    with PrivateRabbitMQ() as server:
        os.environ["BEATKEEPER_TEST_RABBITMQCTL"] = server.ctl_command()
        yield reach_rabbitmq(server.url, "private") or refuse("our own RabbitMQ does not answer")


def refuse(sentence: str) -> Service:
    raise CannotStart(sentence)


def install_missing_packages() -> None:
    """As root on Debian and its kin. Tests that stop a RabbitMQ need the program even where one runs."""
    missing = [package for package, program in PACKAGES.items() if not is_installed(package, program)]
    if not missing or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    say(f"installing {', '.join(missing)} ...")
    # The run level keeps the packages from starting their servers: ours are private.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]
    for attempt in (install, ["apt-get", "update", "-q"], install):
        answer = subprocess.run(attempt, env=env, capture_output=True, text=True)
        if attempt is install and answer.returncode == 0:
            return
    say(f"apt-get could not install them: {answer.stderr.strip()[-300:]}")


def is_installed(package: str, program: str) -> bool:
    if package == "rabbitmq-server":
        return private_rabbitmq.system_binaries() is not None
    return find(program) is not None


def find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


def programs() -> str:
    return "; ".join(
        f"{name} {find(name) or 'missing, its tests are skipped'}" for name in PACKAGES.values() if name
    )


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
