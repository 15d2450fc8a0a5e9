"""A RabbitMQ for tests that stop it, purge it or need one to themselves."""

import os
import pwd
import resource
import secrets
import shlex
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Self

import amqp

from scheduler_project.sdk.process.processes import die_with_parent
from scheduler_project.standalone.process import last_lines
from scheduler_project.standalone.state import Account, as_account
from tests.support.certificates import OwnCA
from tests.support.ports import answers, free_port
from tests.support.waiting import wait_until

# Not Debian's wrapper in /usr/sbin: it insists on its own user and its own cookie.
SYSTEM_BINARIES = ("/usr/lib/rabbitmq/bin", "/opt/homebrew/opt/rabbitmq/sbin", "/usr/local/sbin")
CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
disk_free_limit.absolute = 50MB
log.console = true
log.console.level = warning
log.file = false
"""
# Certificates of clients are looked at, and asked of none.
OVER_TLS = """\
listeners.ssl.1 = 127.0.0.1:{port}
ssl_options.cacertfile = {folder}/ca.pem
ssl_options.certfile = {folder}/server.pem
ssl_options.keyfile = {folder}/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
"""
MANAGEMENT = """\
management.{kind}.ip = 127.0.0.1
management.{kind}.port = {port}
"""
MANAGEMENT_CERTIFICATE = """\
management.ssl.cacertfile = {folder}/ca.pem
management.ssl.certfile = {folder}/server.pem
management.ssl.keyfile = {folder}/server.key
"""


def system_binaries() -> Path | None:
    for folder in map(Path, SYSTEM_BINARIES):
        if (folder / "rabbitmq-server").exists():
            return folder
    return None


def rabbitmq_account() -> Account | None:
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("rabbitmq")
    except KeyError:
        return None


class PrivateRabbitMQ:
    """A node with ports, folders and cookie of its own; `stop` or `kill` and `start` keep the data."""

    def __init__(self, *, management: bool = False, ca: OwnCA | None = None) -> None:
        binaries = system_binaries()
        if binaries is None:
            raise FileNotFoundError("rabbitmq-server is not installed")
        self._binaries = binaries
        self._account = rabbitmq_account()
        self.port = free_port()
        self.management_port = free_port() if management else 0
        self._ca, self.tls_port = ca, free_port() if ca else 0
        self.folder = Path(mkdtemp(prefix=f"bk-mq-{os.environ.get('BEATKEEPER_TEST_ID', 'x')}-"))
        self.vhost = "/"
        self.node = f"bk-{secrets.token_hex(4)}@localhost"
        self.log = self.folder / "console.log"
        self._mapper_port = free_port()
        self._dist_port = free_port()
        self._end_with_us = partial(die_with_parent, os.getpid(), signal.SIGTERM)
        self._mapper: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._prepare_folder()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{self.vhost}"

    @property
    def tls_url(self) -> str:
        return f"amqps://guest:guest@127.0.0.1:{self.tls_port}/{self.vhost}"

    def start(self) -> None:
        if self._mapper is None:
            self._mapper = self._launch("epmd", "-port", str(self._mapper_port), "-address", "127.0.0.1")
            wait_until(lambda: answers(self._mapper_port), 10, "the Erlang port mapper")
        self._server = self._launch(str(self._binaries / "rabbitmq-server"))
        wait_until(
            lambda: self._accepts() or not self.is_alive(), 90, f"RabbitMQ in {self.folder}", interval=0.2
        )
        if not self.is_alive():
            raise RuntimeError(f"RabbitMQ did not start:\n{last_lines(self.log, 40)}")

    def stop(self) -> None:
        """As `systemctl stop rabbitmq-server` does: connections are closed, durable queues written."""
        if self._server is not None:
            self._server.terminate()
            try:
                self._server.wait(30)
            except subprocess.TimeoutExpired:
                pass
            self.kill()

    def kill(self) -> None:
        if self._server is not None:
            _kill_group(self._server)
            self._server = None

    def suspend(self) -> None:
        """Nothing answers any more and no connection is closed, as behind a network that drops packets."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._server is not None:
            os.killpg(self._server.pid, number)

    def replace(self) -> None:
        """Another, empty broker at the same address."""
        self.ctl("stop_app")
        self.ctl("force_reset")
        self.ctl("start_app")
        self.ctl("await_startup")
        if self.vhost != "/":
            self.ctl("add_vhost", self.vhost)
            self.ctl("set_permissions", "--vhost", self.vhost, "guest", ".*", ".*", ".*")

    def is_alive(self) -> bool:
        return self._server is not None and self._server.poll() is None

    def ctl(self, *arguments: str) -> str:
        """rabbitmqctl on this node; it takes a second or two to start."""
        command = [str(self._binaries / "rabbitmqctl"), "--quiet", "--node", self.node, *arguments]
        answer: subprocess.CompletedProcess[str] = subprocess.run(
            command,
            env=self._env(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
            **as_account(self._account),
        )
        return answer.stdout

    def ctl_command(self) -> str:
        """Write a program for this node that is called as rabbitmqctl is, also from another account."""
        account = self._account
        switch = (
            ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
            if account
            else []
        )
        words = [
            *switch,
            *("env", "-i", *(f"{name}={value}" for name, value in self._env().items())),
            *(str(self._binaries / "rabbitmqctl"), "--node", self.node),
        ]
        program = self.folder / "ctl"
        program.write_text(f'#!/bin/sh\ncd {self.folder}\nexec {shlex.join(words)} "$@"\n')
        program.chmod(0o755)
        return str(program)

    def queues(self) -> dict[str, int]:
        """Messages in each queue, ready and unacknowledged."""
        listed = self.ctl("list_queues", "--vhost", self.vhost, "--no-table-headers", "name", "messages")
        return {name: int(messages) for name, messages in map(str.split, listed.splitlines())}

    def use_fresh_vhost(self) -> None:
        """From here on `url` shows an empty broker, whatever an earlier test left."""
        self.vhost = secrets.token_hex(4)
        self.ctl("add_vhost", self.vhost)
        self.ctl("set_permissions", "--vhost", self.vhost, "guest", ".*", ".*", ".*")

    def _prepare_folder(self) -> None:
        configuration, plugins = CONFIGURATION.format(port=self.port), ""
        if self.management_port:
            plugins = "rabbitmq_management"
            configuration += MANAGEMENT.format(kind="ssl" if self._ca else "tcp", port=self.management_port)
        if self._ca:
            configuration += OVER_TLS.format(port=self.tls_port, folder=self.folder)
            configuration += MANAGEMENT_CERTIFICATE.format(folder=self.folder) * bool(self.management_port)
            for file in (self._ca.ca, self._ca.certificate, self._ca.key):
                shutil.copy(file, self.folder / file.name)
        (self.folder / "rabbitmq.conf").write_text(configuration)
        (self.folder / "enabled_plugins").write_text(f"[{plugins}].\n")
        if self._account:
            for path in (self.folder, *self.folder.iterdir()):
                os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _env(self) -> dict[str, str]:
        inside = {
            "HOME": "",
            "RABBITMQ_MNESIA_BASE": "mnesia",
            "RABBITMQ_LOG_BASE": "log",
            "RABBITMQ_PID_FILE": "pid",
            "RABBITMQ_CONFIG_FILE": "rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": "advanced.config",
            "RABBITMQ_CONF_ENV_FILE": "none.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": "enabled_plugins",
        }
        return {
            "PATH": f"{self._binaries}:{os.environ.get('PATH', os.defpath)}",
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            **{name: str(self.folder / part) for name, part in inside.items()},
        }

    def _launch(self, *command: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            return subprocess.Popen(
                command,
                env=self._env(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=self._as_a_service,
                **as_account(self._account),
            )

    def _as_a_service(self) -> None:
        """Many file handles (a thousand queues need them), and an end with the test run."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._end_with_us()

    def _accepts(self) -> bool:
        try:
            with amqp.Connection(f"127.0.0.1:{self.port}", connect_timeout=2):
                return True
        except (OSError, amqp.AMQPError):
            return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if self._mapper is not None:
            _kill_group(self._mapper)
        shutil.rmtree(self.folder, ignore_errors=True)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
