"""Invalid settings are refused without quoting them: an address may hold a password."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from scheduler_project import env
from scheduler_project.doctor.database import address_of
from scheduler_project.sdk.logs.store import folder_of
from tests.support.processes import CHECKOUT

UNREADABLE = [
    "postgresql://user:pa%zzzebra@localhost/db",
    "postgresql://user:pa sszebra@localhost/db",
    "postgresql://user:pazebra@[::1/db",
    "postgresql://user:pa/sszebra@localhost/db",
    "postgresql://user:12/sszebra@localhost/db",
    "postgresql://user:pa?sszebra@localhost/db",
    "postgresql://user:pa#sszebra@localhost/db",
]


@pytest.mark.parametrize("url", UNREADABLE)
def test_an_address_that_cannot_be_read_is_refused_without_its_password(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_DIRECT_URL", url)
    with pytest.raises(ImproperlyConfigured, match="DATABASE_DIRECT_URL .*percent") as refusal:
        env.postgres_url("DATABASE_DIRECT_URL", "")
    assert "zebra" not in str(refusal.value)
    assert refusal.value.__cause__ is refusal.value.__context__ is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "postgresql://user:pa%2Fss%40w@localhost:5432/db",
        "postgresql:///db?host=/var/run/postgresql&password=a@b",
        "postgres://user@[::1]:5432/db",
    ],
)
def test_an_address_that_can_be_read_is_taken_as_it_is(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_DIRECT_URL", url)
    assert env.postgres_url("DATABASE_DIRECT_URL", "") == url


@pytest.mark.parametrize(
    "url, shown",
    [
        ("amqp://user:secret@host:5672/vhost", "host:5672/vhost"),
        ("postgresql:///db?host=/tmp&password=secret", "the local socket/db"),
        ("amqp://user:12/secret@host/vhost", "an address that is not to be shown"),
        ("amqp://user:12?secret@host/vhost", "an address that is not to be shown"),
        ("amqp://user:12#secret@host/vhost", "an address that is not to be shown"),
        ("amqp://user:se@12?cret@host/vhost", "an address that is not to be shown"),
    ],
)
def test_the_doctor_shows_an_address_and_no_password(url: str, shown: str) -> None:
    assert address_of(url) == shown


def test_numbers_that_are_left_out_keep_their_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_LIMITS", "files=5")
    assert env.numbers("SOME_LIMITS", {"files": 1, "cpu": 2}) == {"files": 5, "cpu": 2}


@pytest.mark.parametrize("value", ["files", "files=", "files=many", "files=-1", "colour=1", "files=1.5"])
def test_numbers_that_are_none_are_refused_by_name(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_LIMITS", value)
    with pytest.raises(ImproperlyConfigured, match="SOME_LIMITS"):
        env.numbers("SOME_LIMITS", {"files": 1})


@pytest.mark.parametrize(
    "value, said",
    [
        ("/srv/scripts,tools", "'tools' is not the whole"),
        ("/", "'/' is everything"),
        ("/srv/scripts,/..", "'/..' is everything"),
    ],
)
def test_folders_that_cannot_be_shown_are_refused_by_name(
    value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEATKEEPER_COMMAND_FOLDERS", value)
    with pytest.raises(ImproperlyConfigured, match=f"BEATKEEPER_COMMAND_FOLDERS: {said}"):
        env.folders("BEATKEEPER_COMMAND_FOLDERS", "", {})


@pytest.fixture
def srv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Make the folders of a machine whose project is `app`, with a spool behind a link."""
    for folder in ("app/scripts", "app-tools", "scripts", "elsewhere/spool"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "spool").symlink_to(tmp_path / "elsewhere" / "spool")
    (tmp_path / "link").symlink_to(tmp_path)

    def named(folder: str) -> list[str]:
        monkeypatch.setenv("BEATKEEPER_COMMAND_FOLDERS", f"{tmp_path}/{folder}")
        private = {"the spool": f"{tmp_path}/var/spool", "the folder of logs": f"{tmp_path}/logs/of/runs"}
        return env.folders("BEATKEEPER_COMMAND_FOLDERS", f"{tmp_path}/app", private)

    return named


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("", "the project"),
        (".", "the project"),
        ("link", "the project"),
        ("link/scripts/..", "the project"),
        ("app", "the project"),
        ("app/../app/", "the project"),
        ("var", "the spool"),
        ("var/spool", "the spool"),
        ("elsewhere", "the spool"),
        ("elsewhere/spool/of-a-worker", "the spool"),
        ("logs", "the folder of logs"),
        ("link/logs/of", "the folder of logs"),
        ("logs/of/runs/of-a-job", "the folder of logs"),
    ],
)
def test_folders_that_hold_what_no_command_may_see_are_refused(
    folder: str, said: str, srv: Callable[[str], list[str]]
) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"BEATKEEPER_COMMAND_FOLDERS: .* {said}, .*beside it"):
        srv(folder)


@pytest.mark.parametrize("folder", ["scripts", "app/scripts", "app-tools", "link/scripts", "logs/of-others"])
def test_folders_beside_those_may_be_named_and_parts_of_the_project(
    folder: str, srv: Callable[[str], list[str]]
) -> None:
    assert [Path(named).name for named in srv(folder)] == [Path(folder).name]


@pytest.mark.parametrize(
    "setting", ["", "BEATKEEPER_SPOOL_DIR=/var/x/spool", "LOG_STORE_URL=file:///var/x/my%20logs"]
)
def test_the_settings_know_what_no_command_may_see(setting: str) -> None:
    name, _, value = setting.partition("=")
    named = "/var/x/my logs" if name == "LOG_STORE_URL" else "/var/x" if name else str(CHECKOUT)
    given = os.environ | ({name: value} if name else {}) | {"BEATKEEPER_COMMAND_FOLDERS": named}
    done = subprocess.run(
        [sys.executable, "-c", "import scheduler_project.settings"],
        env=given | {"SECRET_KEY": "x", "DATABASE_URL": "postgresql://nobody@127.0.0.1/none"},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    assert f"BEATKEEPER_COMMAND_FOLDERS: '{named}'" in done.stderr


def test_the_folder_of_the_logs_is_read_off_its_url() -> None:
    assert folder_of("file:///srv/my%20logs") == "/srv/my logs"
    assert folder_of("file://host/logs") == folder_of("") == ""
