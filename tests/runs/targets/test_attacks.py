"""Known tricks by which a target would reach what only the platform may: each by its name, each refused.

They go through the real executors. A server on loopback shows that it was not reached, a file or a process that
nothing was done. And each is shown to be a trick: with its guard taken away it works.
"""

import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpcore
import httpx
import pytest
from httpcore import SyncBackend

from runs.targets.command import isolation
from runs.targets.command import run as command
from runs.targets.command import seccomp as call_filter
from runs.targets.http import call as http
from runs.targets.http import ssrf as addresses
from scheduler_project.sdk.ledger.interface import Claim
from scheduler_project.sdk.outcomes import PermanentError
from scheduler_project.sdk.targets.registry import TargetFailed
from tests.runs.targets.command.test_run import UNTIL_IT_SLEEPS
from tests.runs.targets.executed import OneSlot
from tests.runs.targets.ordinary_user import SYSTEM_PYTHON, UID, as_ordinary_user, needs_bubblewrap
from tests.sdk.targets.test_celery_task import make_claim
from tests.support.waiting import wait_until

Break = Callable[[pytest.MonkeyPatch], None]
REFUSED = (PermanentError, TargetFailed, httpx.TransportError)


# HTTP


class Inside(ThreadingHTTPServer):
    """What must not be reached. Somebody who is there answers, and leads on to where the path says."""

    daemon_threads = True

    def __init__(self) -> None:
        self.seen: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Handler(BaseHTTPRequestHandler):
    def handle_one_request(self) -> None:
        assert isinstance(self.server, Inside)
        self.server.seen.append("a connection")
        super().handle_one_request()

    def do_GET(self) -> None:
        assert isinstance(self.server, Inside)
        self.server.seen.append(f"{self.command} {self.path} {self.headers}")
        leads_on = self.path.partition("?to=")[2]
        self.send_response(302 if leads_on else 200)
        if leads_on:
            self.send_header("Location", leads_on)
        self.end_headers()

    do_POST = do_GET  # noqa: N815 - the standard library's name

    def log_message(self, *_arguments: Any) -> None:
        pass


def address_guard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(addresses, "is_public", lambda _: True)
    patch.setattr(addresses, "is_own", lambda _: False)


def allowed_by_name_guard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(addresses, "METADATA", ())


def one_look_guard(patch: pytest.MonkeyPatch) -> None:
    """As most clients do: look, check, and let the connection look again."""
    checked = addresses.CheckedAddresses.addresses

    def look_twice(self: Any, host: str, port: int) -> Any:
        checked(self, host, port)
        return addresses.resolve(host, port)

    patch.setattr(addresses.CheckedAddresses, "addresses", look_twice)


def port_guard(patch: pytest.MonkeyPatch) -> None:
    names = addresses.CheckedAddresses

    def by_name(self: Any, host: str, port: int) -> bool:
        return any(name.startswith(host) for name in self._allowed)

    patch.setattr(names, "is_allowed", by_name)


def whole_name_guard(patch: pytest.MonkeyPatch) -> None:
    def by_beginning(self: Any, host: str, port: int) -> bool:
        return any(host.startswith(name) for name in self._allowed)

    patch.setattr(addresses.CheckedAddresses, "is_allowed", by_beginning)


def header_guard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(http, "is_connection_header", lambda _: False)


def method_guard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(http, "METHODS", ("TRACE",))


def login_guard(patch: pytest.MonkeyPatch) -> None:
    address_guard(patch)
    patch.setattr(http, "refuse_nonsense", lambda *_: None)


def proxy_guard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(http, "client", lambda *_: httpx.Client(trust_env=True, timeout=5))


def stranger_guard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(http, "same_host", lambda *_: True)


@dataclass(frozen=True)
class Call:
    """One that is sent to an `allowed` host does harm by what it carries; any other by arriving at all."""

    name: str
    url: str
    guard: Break | None
    method: str = "GET"
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    allowed: Sequence[str] = ()
    redirects: int = 0
    # What a name leads to, look by look.
    leads_to: Sequence[Sequence[str]] = ()
    proxies: bool = False
    # Seen in what arrives.
    harm: str = "a connection"
    # Otherwise it is made, without what would do harm.
    refused: bool = True


def to(url: str, name: str, **values: Any) -> Call:
    return Call(name, url, address_guard, **values)


FRONT = "127.0.0.1:{port}"
PUBLIC = "93.184.215.14"
CALLS = [
    to("http://127.0.0.1:{port}/", "loopback"),
    to("http://127.8.8.8:{port}/", "loopback that is not 127.0.0.1"),
    to("http://2130706433:{port}/", "decimal address"),
    Call("octal address", "http://0177.0.0.1:{port}/", None),
    to("http://0x7f000001:{port}/", "hexadecimal address"),
    to("http://0x7f.0.0.0x1:{port}/", "hexadecimal parts"),
    to("http://127.1:{port}/", "address with parts left out"),
    to("http://0.0.0.0:{port}/", "the unspecified address"),
    to("http://0:{port}/", "the unspecified address as one digit"),
    to("http://[::1]:{port}/", "IPv6 loopback"),
    to("http://[::]:{port}/", "IPv6 unspecified"),
    to("http://[::ffff:127.0.0.1]:{port}/", "IPv4 mapped into IPv6"),
    to("http://[::ffff:7f00:1]:{port}/", "IPv4 mapped into IPv6, in hexadecimal"),
    to("http://[::127.0.0.1]:{port}/", "IPv4 compatible IPv6"),
    to("http://[64:ff9b::7f00:1]:{port}/", "NAT64"),
    to("http://[64:ff9b:1::7f00:1]:{port}/", "NAT64 of a network of one's own"),
    to("http://[2002:7f00:1::]:{port}/", "6to4"),
    to("http://[2001:0:7f00:1::]:{port}/", "Teredo"),
    to("http://[fe80::1%25lo]:{port}/", "link-local IPv6 with a zone", leads_to=[["fe80::1%lo"]]),
    to("http://[fd00::1]:{port}/", "unique local IPv6"),
    to("http://10.0.0.1/", "private address"),
    to("http://172.31.255.255/", "private address at the end of its range"),
    to("http://192.168.0.1/", "private address of a home"),
    to("http://169.254.169.254/latest/meta-data/", "metadata of AWS, GCP and Azure"),
    to("http://2852039166/latest/meta-data/", "metadata as a decimal address"),
    to("http://[fd00:ec2::254]/latest/meta-data/", "metadata of AWS over IPv6"),
    to("http://100.100.100.200/latest/meta-data/", "metadata of Alibaba"),
    to("http://168.63.129.16/", "wire server of Azure"),
    to("http://localhost:{port}/", "localhost"),
    to("http://LOCALHOST:{port}/", "localhost in capitals"),
    to("http://localhost.:{port}/", "localhost with a dot at its end", leads_to=[["127.0.0.1"]]),
    to("http://127.0.0.1.:{port}/", "address with a dot at its end", leads_to=[["127.0.0.1"]]),
    Call("digits that are no ASCII", "http://①②⑦.⓪.⓪.①:{port}/", None),
    to("http://127。0。0。1:{port}/", "dots that are no ASCII"),
    to("http://127.0.0.1.nip.example:{port}/", "name that leads inside", leads_to=[["127.0.0.1"]]),
    to("http://mixed.example:{port}/", "name that leads inside too", leads_to=[[PUBLIC, "10.0.0.1"]]),
    Call(
        "name that leads elsewhere when it is looked up again",
        "http://rebinding.example:{port}/",
        one_look_guard,
        leads_to=[[PUBLIC], ["127.0.0.1"]],
    ),
    Call("login before the host", "http://team.example@127.0.0.1:{port}/", login_guard),
    Call("login with a password", "http://team.example:80@127.0.0.1:{port}/", login_guard),
    to("http://127.0.0.1:{port}#@team.example/", "host behind a fragment"),
    to("http://127.0.0.1:{port}?@team.example/", "host behind a query"),
    Call("backslash before the host", "http://127.0.0.1:{port}\\@team.example/", None),
    Call("host in percent signs", "http://%31%32%37.0.0.1:{port}/", None),
    Call("file", "file:///etc/passwd", None),
    Call("gopher", "gopher://127.0.0.1:{port}/_GET%20/", None),
    Call("dict", "dict://127.0.0.1:{port}/stats", None),
    Call("socket of the machine", "http+unix://%2Frun%2Fdocker.sock/containers", None),
    Call("line break in the URL", "http://127.0.0.1:{port}/\r\nX-Injected: yes", None, allowed=[FRONT]),
    Call(
        "line break in a header",
        "http://127.0.0.1:{port}/",
        None,
        headers={"X-Team": "red\r\nX-Injected: yes"},
        allowed=[FRONT],
    ),
    Call(
        "line break in a header's name",
        "http://127.0.0.1:{port}/",
        None,
        headers={"X-Team: red\r\nX-Injected": "yes"},
        allowed=[FRONT],
    ),
    Call(
        "host of one's own choice",
        "http://127.0.0.1:{port}/",
        header_guard,
        headers={"Host": "metadata.google.internal"},
        allowed=[FRONT],
        harm="metadata.google.internal",
    ),
    Call(
        "second request smuggled behind the first",
        "http://127.0.0.1:{port}/",
        header_guard,
        method="POST",
        body="0\r\n\r\nGET /inside HTTP/1.1\r\n\r\n",
        headers={"Transfer-Encoding": "chunked"},
        allowed=[FRONT],
        harm="chunked",
    ),
    Call(
        "request line as the method",
        "http://127.0.0.1:{port}/",
        None,
        method="GET /inside HTTP/1.1\r\nHost: x\r\n\r\nGET",
        allowed=[FRONT],
    ),
    Call(
        "method that shows headers", "http://127.0.0.1:{port}/", method_guard, method="TRACE", allowed=[FRONT]
    ),
    Call("proxy of the environment", "http://10.0.0.1/", proxy_guard, proxies=True),
    Call("proxy of the environment with TLS", "https://10.0.0.1/", proxy_guard, proxies=True),
    Call("another port of an allowed host", "http://127.0.0.1:{port}/", port_guard, allowed=["127.0.0.1:1"]),
    Call(
        "name that begins like an allowed one",
        "http://team.example.evil.example:{port}/",
        whole_name_guard,
        allowed=["team.example"],
        leads_to=[["127.0.0.1"]],
    ),
    Call(
        "allowed name that leads to metadata",
        "http://team.example/latest/meta-data/",
        allowed_by_name_guard,
        allowed=["team.example"],
        leads_to=[["169.254.169.254"]],
    ),
]


def lead(onward: str, name: str, **values: Any) -> Call:
    return Call(
        name, "http://127.0.0.1:{front}/?to=" + onward, redirects=3, allowed=["127.0.0.1:{front}"], **values
    )


REDIRECTS = [
    lead("http://127.0.0.1:{port}/", "redirect inside", guard=address_guard),
    lead("//127.0.0.1:{port}/", "redirect inside without a scheme", guard=address_guard),
    lead("http://2130706433:{port}/", "redirect to a decimal address", guard=address_guard),
    lead("http://169.254.169.254/", "redirect to metadata", guard=address_guard),
    lead(
        "http://hook.example:{port}/",
        "redirect to a name that leads inside",
        guard=address_guard,
        leads_to=[["10.0.0.1"]],
    ),
    lead(
        "http://127.0.0.1:{front}/?to=http://127.0.0.1:{port}/",
        "redirect of a redirect inside",
        guard=address_guard,
    ),
    lead("file:///etc/passwd", "redirect to a file", guard=None),
    lead("gopher://127.0.0.1:{port}/", "redirect to gopher", guard=None),
    lead("http://u:p@127.0.0.1:{port}/", "redirect with a login", guard=login_guard),
    Call(
        "redirect that carries the key on",
        "http://127.0.0.1:{front}/?to=http://127.0.0.1:{port}/",
        stranger_guard,
        headers={"Authorization": "Bearer s3cr3t"},
        allowed=["127.0.0.1:{front}", FRONT],
        redirects=1,
        harm="s3cr3t",
        refused=False,
    ),
]


@pytest.fixture
def servers() -> Iterator[tuple[Inside, Inside]]:
    """Start a server that must not be reached, and an allowed one beside it."""
    pair = Inside(), Inside()
    for server in pair:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield pair
    for server in pair:
        server.shutdown()
        server.server_close()


class World:
    """Where no address is the inside's own: whatever is not public leads to our server, what is leads nowhere."""

    def __init__(self, inside: Inside, front: Inside, call: Call, patch: pytest.MonkeyPatch) -> None:
        self.inside, self.front, self.call, self._looks = inside, front, call, 0
        dial, look = SyncBackend.connect_tcp, socket.getaddrinfo

        def connect(backend: Any, host: str, port: int, *more: Any, **options: Any) -> Any:
            if host == PUBLIC:
                raise httpcore.ConnectError("nobody is there")
            reached = front.port if port == front.port else inside.port
            return dial(backend, "127.0.0.1", reached, *more, **options)

        def resolve(host: str, port: int, *more: Any, **options: Any) -> Any:
            if host == "127.0.0.1" or not call.leads_to:
                return look(host, port, *more, **options)
            found = call.leads_to[min(self._looks, len(call.leads_to) - 1)]
            self._looks += 1
            return [(0, 0, 0, "", (address, port)) for address in found]

        patch.setattr(SyncBackend, "connect_tcp", connect)
        patch.setattr(addresses, "getaddrinfo", resolve)
        if call.proxies:
            for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
                patch.setenv(name, f"http://127.0.0.1:{inside.port}")
                patch.setenv(name.lower(), f"http://127.0.0.1:{inside.port}")
            for name in ("NO_PROXY", "no_proxy"):
                patch.delenv(name, raising=False)

    def attack(self, folder: Path) -> None:
        ports = {"port": str(self.inside.port), "front": str(self.front.port)}
        target = {
            "kind": "http",
            "url": filled(self.call.url, ports),
            "method": self.call.method,
            "headers": self.call.headers,
            "body": self.call.body,
            "redirects": self.call.redirects,
        }
        allowed = [filled(host, ports) for host in self.call.allowed]
        OneSlot(folder).carry_out(http.execute, make_claim(target, allowed_hosts=allowed, timeout=10.0))

    @property
    def harmed(self) -> bool:
        return any(self.call.harm in seen for seen in self.inside.seen)


def filled(text: str, ports: dict[str, str]) -> str:
    for name, port in ports.items():
        text = text.replace("{" + name + "}", port)
    return text


named = pytest.mark.parametrize("call", [*CALLS, *REDIRECTS], ids=lambda call: call.name)


@named
def test_a_call_that_would_go_inside_is_refused(
    call: Call, servers: tuple[Inside, Inside], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(*servers, call, monkeypatch)
    with pytest.raises(REFUSED) if call.refused else nullcontext():
        world.attack(tmp_path)
    assert not world.harmed


@pytest.mark.parametrize(
    "call", [call for call in (*CALLS, *REDIRECTS) if call.guard], ids=lambda call: call.name
)
def test_without_its_guard_the_call_would_go_inside(
    call: Call, servers: tuple[Inside, Inside], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(*servers, call, monkeypatch)
    assert call.guard is not None
    call.guard(monkeypatch)
    with suppress(*REFUSED):
        world.attack(tmp_path)
    assert world.harmed


# Commands

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not isolation.in_namespace.succeeds(), reason="PID namespaces cannot be made here"
)


@dataclass
class Scene:
    """A folder everybody may write in, a server on loopback, and somebody else who runs as nobody."""

    folder: Path
    port: int
    reached: list[str]
    victim: subprocess.Popen[bytes]
    runner: OneSlot
    spool: Path

    def fill(self, text: str) -> str:
        places = {
            "{folder}": str(self.folder),
            "{port}": str(self.port),
            "{victim}": str(self.victim.pid),
            "{worker}": str(os.getpid()),
            "{spool}": str(self.spool),
        }
        for name, value in places.items():
            text = text.replace(name, value)
        return text

    @property
    def marked(self) -> bool:
        return (self.folder / "mark").exists() or Path("/tmp/mark").exists()  # noqa: S108

    @property
    def log(self) -> str:
        return self.runner.log if hasattr(self.runner, "claim") else ""


Harm = Callable[[Scene], bool]


def marked(scene: Scene) -> bool:
    return scene.marked


def logged(word: str) -> Harm:
    return lambda scene: word in scene.log


def victim_died(scene: Scene) -> bool:
    with suppress(subprocess.TimeoutExpired):
        scene.victim.wait(0.3)
    return scene.victim.returncode is not None


def reached(scene: Scene) -> bool:
    return bool(scene.reached)


def runs_on(argument: str) -> Harm:
    def harm(_: Scene) -> bool:
        pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and argument.encode() in cmdline(pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        return bool(pids)

    return harm


def cmdline(pid: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def launcher_without(*lines: tuple[str, str]) -> Break:
    """Copy the launcher without a part of it."""

    def take_away(patch: pytest.MonkeyPatch) -> None:
        text = Path(isolation.LAUNCHER).read_text()
        for line, instead in lines:
            assert line in text, line
            text = text.replace(line, instead)
        copy = Path(tempfile.mkdtemp(prefix="launcher-")) / "launch.py"
        copy.write_text(text)
        patch.setattr(isolation, "LAUNCHER", str(copy))

    return take_away


def through_a_shell(patch: pytest.MonkeyPatch) -> None:
    written = isolation.written_order
    patch.setattr(isolation, "written_order", lambda argv, env: written(["sh", "-c", " ".join(argv)], env))


def words_for_the_interpreter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(isolation, "launch", plain(lambda argv, _env: [sys.executable, *argv]))


def with_the_tenant_s_environment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(isolation, "launch", plain(lambda argv, _env: [sys.executable, "-c", "pass"]))
    any_name(patch)


def with_the_worker_s_environment(patch: pytest.MonkeyPatch) -> None:
    own = command.environment
    patch.setattr(command, "environment", lambda attempt: {**os.environ, **own(attempt)})


def plain(made: Callable[[Sequence[str], dict[str, str]], list[str]]) -> Any:
    def launch(argv: Sequence[str], env: dict[str, str], *_more: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            made(argv, env),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    return launch


def any_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(command, "why_not_in_environment", lambda _: "")


def any_descriptor(patch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen

    def leaking(*words: Any, **options: Any) -> Any:
        options.pop("pass_fds", None)
        return popen(*words, **{**options, "close_fds": False})

    patch.setattr(subprocess, "Popen", leaking)
    patch.setattr(isolation, "written_order", inheritable(isolation.written_order))


def inheritable(written: Callable[..., int]) -> Callable[..., int]:
    def write(*words: Any) -> int:
        order = written(*words)
        os.set_inheritable(order, True)
        return order

    return write


no_pid_namespace = launcher_without(("CLONE_NEWPID | CLONE_NEWNS", "CLONE_NEWNS"))
nobody_stays_root = launcher_without(("    drop_user()\n", ""))
root_and_everything_seen = launcher_without(
    ("    drop_user()\n", ""), ("CLONE_NEWPID | CLONE_NEWNS", "CLONE_NEWNS")
)
no_cover = launcher_without(("    make_folders_private(options)\n", ""), ("    drop_user()\n", ""))
shared_tmp = launcher_without(("    make_folders_private(options)\n", "    os.chdir('/tmp')\n"))
# The kernel takes a filter of calls only from whom it gives no new privileges.
new_privileges = launcher_without(
    ("checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)", "(lambda *_: None)(0"),
    ("        refuse_calls(", "        str("),
)
no_limits = launcher_without(("    limit(options)\n", ""))
all_calls = launcher_without(("        refuse_calls(", "        str("))
with_network = launcher_without(('if ("network", "0") in options else 0', "if False else 0"))


@dataclass(frozen=True)
class Command:
    name: str
    argv: Sequence[str]
    harm: Harm
    guard: Break | None
    env: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    network: bool = True
    is_known_here: Callable[[], bool] = lambda: True  # noqa: E731


VSOCK = "import socket; socket.socket(socket.AF_VSOCK); print('made')"
RING = f"""
import ctypes
if ctypes.CDLL(None).syscall({call_filter.RINGS[0]}, 1, ctypes.create_string_buffer(120)) >= 0:
    print("made")
"""
KEYRING_CALLS = known.keyrings if (known := call_filter.PROCESSORS.get(platform.machine())) else (0, 0, 0)
# As a kernel answers that does not hear a call: it is refused, or not there.
KEYRING = """
import ctypes
kernel = ctypes.CDLL(None, use_errno=True)
kernel.syscall({number}, 0, 0, 0, 0, 0)
if ctypes.get_errno() not in (1, 38):
    print("made")
"""
# As programs of 32 bits call keyctl on x86-64; one of 64 bits may too.
OLD_KEYRING = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("53 b8 20010000 bb 00000000 b9 00000000 cd80 5b c3"))
if ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))() not in (-1, -38):
    print("made")
"""


def keyring(call: str, number: int) -> Command:
    script = KEYRING.replace("{number}", str(number))
    return making(f"keyrings of all commands and of the worker, by {call}", script)


def making(name: str, script: str, **values: Any) -> Command:
    """Return a script that prints `made` unless the filter of calls refuses what it asks for."""
    values = {"is_known_here": lambda: is_made(script), **values}
    return Command(name, [SYSTEM_PYTHON, "-c", script], logged('"made"'), all_calls, **values)


def is_made(script: str) -> bool:
    """Not every kernel and container has sockets, rings and keyrings of every kind."""
    return subprocess.run([sys.executable, "-c", script], capture_output=True).stdout == b"made\n"


def sh(name: str, script: str, harm: Harm, guard: Break | None, **values: Any) -> Command:
    return Command(name, ["sh", "-c", script], harm, guard, **values)


COMMANDS = [
    Command("semicolon", ["echo", "x; touch {folder}/mark"], marked, through_a_shell),
    Command("pipe", ["echo", "x | tee {folder}/mark"], marked, through_a_shell),
    Command("and", ["echo", "x && touch {folder}/mark"], marked, through_a_shell),
    Command("command substitution", ["echo", "$(touch {folder}/mark)"], marked, through_a_shell),
    Command("backticks", ["echo", "`touch {folder}/mark`"], marked, through_a_shell),
    Command("redirection", ["echo", "x > {folder}/mark"], marked, through_a_shell),
    Command("line break", ["echo", "x\ntouch {folder}/mark"], marked, through_a_shell),
    Command(
        "option for the launcher",
        ["-c", "open('{folder}/mark', 'w')"],
        marked,
        words_for_the_interpreter,
    ),
    Command("NUL that ends a word", ["sh", "-c\0", "touch {folder}/mark"], marked, None),
    Command("NUL that adds a variable", ["true"], marked, None, env={"A": "x\0LD_PRELOAD={folder}/mine.so"}),
    Command("library before all others", ["true"], marked, any_name, env={"LD_PRELOAD": "{folder}/mine.so"}),
    Command("library that watches", ["true"], marked, None, env={"LD_AUDIT": "{folder}/mine.so"}),
    Command(
        "settings of the C library", ["true"], marked, None, env={"GLIBC_TUNABLES": "glibc.malloc.check=3"}
    ),
    Command(
        "script before a script",
        ["bash", "-c", "true"],
        marked,
        any_name,
        env={"BASH_ENV": "{folder}/mine.sh"},
    ),
    Command(
        "program in the place of the launcher's",
        ["/bin/true"],
        marked,
        with_the_tenant_s_environment,
        env={"PATH": "{folder}", "PYTHONPATH": "{folder}"},
    ),
    sh("environment inherited", "env", logged("planted-s3cr3t"), with_the_worker_s_environment),
    sh(
        "environment of the worker read",
        "cat /proc/{worker}/environ; cat /proc/[0-9]*/environ",
        logged("planted-s3cr3t"),
        root_and_everything_seen,
    ),
    sh("memory of the worker read", "head -c 1 /proc/{worker}/mem && echo opened", logged("opened"), None),
    sh(
        "descriptors of the worker read",
        "ls /proc/{worker}/fd && echo opened",
        logged('"opened"'),
        root_and_everything_seen,
    ),
    sh("sockets inherited", "ls -l /proc/self/fd", logged("socket:"), any_descriptor),
    sh("worker killed", "kill -0 {worker} && echo alive", logged("alive"), root_and_everything_seen),
    sh("another's command killed", "kill -9 {victim}", victim_died, no_pid_namespace),
    sh("everybody's commands killed", "trap '' TERM; kill -9 -1", victim_died, no_pid_namespace),
    sh("another's arguments read", "cat /proc/{victim}/cmdline", logged("600.25"), no_pid_namespace),
    sh("result in the spool read", "cat {spool}/result", logged("planted-s3cr3t"), no_cover),
    sh("result in the spool forged", "touch {spool}/mark && cp {spool}/mark {folder}/mark", marked, no_cover),
    sh(
        "cover of the spool lifted",
        "unshare -Urm sh -c 'umount {spool}; cat {spool}/result'",
        logged("planted-s3cr3t"),
        None,
    ),
    sh("setuid program", "{folder}/setuid-id -u | grep -x 0 && echo root", logged('"root"'), new_privileges),
    sh("file left in the shared /tmp", "echo x > /tmp/mark", marked, shared_tmp),
    sh(
        "session of its own",
        f"setsid sleep 611.5 </dev/null >/dev/null 2>&1 & {UNTIL_IT_SLEEPS}",
        runs_on("611.5"),
        no_pid_namespace,
    ),
    sh(
        "daemon by two forks",
        f"setsid sh -c 'sleep 612.5 & {UNTIL_IT_SLEEPS}' </dev/null >/dev/null 2>&1",
        runs_on("612.5"),
        no_pid_namespace,
    ),
    sh(
        "fork bomb",
        "i=0; while [ $i -lt 60 ]; do sleep 3 & i=$((i+1)); done; echo forked-them-all",
        logged('"forked-them-all"'),
        no_limits,
        limits={"processes": 30},
    ),
    sh(
        "disk filled",
        "head -c 5000000 /dev/zero > big && echo filled",
        logged('"filled"'),
        no_limits,
        limits={"file_size_mb": 1},
    ),
    sh(
        "memory filled",
        "head -c 300000000 /dev/zero | tail -c 300000000 | wc -c",
        logged('"300000000"'),
        no_limits,
        limits={"memory_mb": 64},
    ),
    sh(
        "limit raised",
        "ulimit -n 5000 && echo raised",
        logged('"raised"'),
        no_limits,
        limits={"open_files": 50},
    ),
    sh("core written", "ulimit -c unlimited && echo raised", logged('"raised"'), no_limits),
    sh("folder mounted", "mount -t tmpfs none /mnt && echo mounted", logged('"mounted"'), nobody_stays_root),
    sh("password file read", "cat /etc/shadow && echo opened", logged('"opened"'), nobody_stays_root),
    Command(
        "loopback without a network",
        ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/{port}"],
        reached,
        with_network,
        network=False,
    ),
    making("socket to the machine below, without a network", VSOCK, network=False),
    making("ring that makes sockets, without a network", RING, network=False),
    *map(keyring, ("add_key", "request_key", "keyctl"), KEYRING_CALLS),
    making(
        "keyrings by a call of 32 bits",
        OLD_KEYRING,
        is_known_here=lambda: platform.machine() == "x86_64" and is_made(OLD_KEYRING),
    ),
]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Scene]:
    launcher, folder = isolation.LAUNCHER, Path(tempfile.mkdtemp(dir="/var/lib"))
    folder.chmod(0o777)
    spool = folder / "spool"
    spool.mkdir(0o700)
    (spool / "result").write_text("planted-s3cr3t")
    settings.SPOOL_DIR = str(spool)
    monkeypatch.setenv("PLANTED", "planted-s3cr3t")
    set_traps(folder)
    seen: list[str] = []
    held = socket.create_server(("127.0.0.1", 0))
    # As the connection of a ledger would be, if somebody had forgotten to close it on the way.
    held.set_inheritable(True)
    threading.Thread(target=accept, args=(held, seen), daemon=True).start()
    victim = subprocess.Popen(["sleep", "600.25"], user=65534, group=65534, extra_groups=[])
    with closing(held):
        yield Scene(folder, held.getsockname()[1], seen, victim, OneSlot(tmp_path), spool)
        with suppress(OSError):
            held.shutdown(socket.SHUT_RDWR)
    victim.kill()
    victim.wait()
    Path("/tmp/mark").unlink(missing_ok=True)  # noqa: S108
    shutil.rmtree(folder)
    if isolation.LAUNCHER != launcher:
        shutil.rmtree(Path(isolation.LAUNCHER).parent)


def accept(listener: socket.socket, seen: list[str]) -> None:
    with suppress(OSError):
        while True:
            peer, _ = listener.accept()
            seen.append("a connection")
            peer.close()


LIBRARY = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) { close(open(MARK, O_CREAT | O_WRONLY, 0644)); }
"""


def set_traps(folder: Path) -> None:
    if shutil.which("cc"):
        build = [
            "cc",
            "-shared",
            "-fPIC",
            f'-DMARK="{folder}/mark"',
            "-x",
            "c",
            "-",
            "-o",
            f"{folder}/mine.so",
        ]
        subprocess.run(build, input=LIBRARY.encode(), check=True)
    (folder / "mine.sh").write_text(f"touch {folder}/mark\n")
    (folder / "sitecustomize.py").write_text(f"open('{folder}/mark', 'w')\n")
    for program in ("python", "python3", "true", "sh"):
        (folder / program).write_text(f"#!/bin/sh\n/usr/bin/touch {folder}/mark\n")
        (folder / program).chmod(0o755)
    shutil.copy("/usr/bin/id", folder / "setuid-id")
    (folder / "setuid-id").chmod(0o4755)


def attack(scene: Scene, trick: Command) -> None:
    target = {
        "kind": "command",
        "argv": [scene.fill(word) for word in trick.argv],
        "env": {name: scene.fill(value) for name, value in trick.env.items()},
        "limits": trick.limits,
        "network": trick.network,
    }
    with suppress(*REFUSED):
        scene.runner.carry_out(command.execute, make_claim(target))


@needs_namespaces
@pytest.mark.parametrize("trick", COMMANDS, ids=lambda trick: trick.name)
def test_a_command_that_would_reach_out_does_not(scene: Scene, trick: Command) -> None:
    attack(scene, trick)
    assert not trick.harm(scene)


@needs_bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="the traps are root's")
@pytest.mark.parametrize("trick", COMMANDS, ids=lambda trick: trick.name)
def test_nor_does_one_of_a_worker_that_is_not_root(scene: Scene, trick: Command) -> None:
    give_away(scene)

    def work() -> Claim | None:
        attack(scene, trick)
        return getattr(scene.runner, "claim", None)

    if claim := as_ordinary_user(work):
        scene.runner.claim = claim
    assert not trick.harm(scene) and "bwrap: " not in scene.log


def give_away(scene: Scene) -> None:
    """Its worker's folders are an ordinary user's."""
    (scene.folder / "logs").mkdir()
    scene.runner = OneSlot(scene.folder / "logs")
    for path in (
        scene.spool,
        *scene.spool.iterdir(),
        *scene.runner.store.root.rglob("*"),
        scene.runner.store.root,
    ):
        os.chown(path, UID, UID)


@needs_namespaces
@pytest.mark.parametrize("trick", [trick for trick in COMMANDS if trick.guard], ids=lambda trick: trick.name)
def test_without_its_guard_the_command_would_reach_out(
    scene: Scene, trick: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not trick.is_known_here():
        pytest.skip("the kernel knows no such trick")
    assert trick.guard is not None
    trick.guard(monkeypatch)
    attack(scene, trick)
    wait_until(lambda: trick.harm(scene), 15, "the harm that the guard prevents")


def test_the_table_is_as_long_as_it_should_be() -> None:
    names = [call.name for call in (*CALLS, *REDIRECTS)] + [trick.name for trick in COMMANDS]
    assert len(set(names)) == len(names) >= 30
