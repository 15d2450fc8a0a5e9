"""`manage.py` without settings: one line and exit code 2, or the settings that `make up` has kept."""

import json
import os
import subprocess
import sys
from base64 import urlsafe_b64encode
from pathlib import Path
from secrets import token_urlsafe

import pytest

from scheduler_project.standalone.state import keep_settings, kept_settings
from tests.support.ports import free_port
from tests.support.processes import CHECKOUT

NO_KEY = (
    "manage.py: SECRET_KEY is not set: put a long random text into the environment, or start with `make up`"
)
NO_DATABASE = "manage.py: DATABASE_URL is not set: use postgresql://"
KEYS = {"SECRET_KEY": token_urlsafe(50), "ENCRYPTION_KEYS": urlsafe_b64encode(bytes(range(32))).decode()}
OURS = ("BEATKEEPER_", "SECRET_KEY", "DATABASE_", "CELERY_", "ENCRYPTION_KEYS", "DJANGO_", "LOG_STORE_URL")


def manage(state: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    others = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=CHECKOUT,
        env={**others, "BEATKEEPER_STATE_DIR": str(state), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "words", [["doctor"], ["help"], ["migrate"], ["check"], ["import_celery_beat", "--tenant", "x"], ["typo"]]
)
def test_a_missing_setting_is_one_line_for_every_command(tmp_path: Path, words: list[str]) -> None:
    done = manage(tmp_path, *words)
    assert (done.returncode, done.stdout, done.stderr.splitlines()) == (2, "", [NO_KEY])


@pytest.mark.parametrize(
    "words",
    [
        ["migrate"],
        ["showmigrations"],
        ["changepassword", "root"],
        ["secrets", "keys"],
        ["broker_user", "acme"],
        ["import_celery_beat", "--tenant", "acme"],
    ],
)
def test_a_database_that_does_not_run_is_one_line_for_every_command(tmp_path: Path, words: list[str]) -> None:
    port = free_port()
    done = manage(tmp_path, *words, DATABASE_URL=f"postgresql://root@127.0.0.1:{port}/beatkeeper", **KEYS)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"manage.py: the database at 127.0.0.1:{port}/beatkeeper does not answer: ")


def test_the_database_of_make_up_is_started_by_it(tmp_path: Path) -> None:
    url = f"postgresql://beatkeeper@/beatkeeper?host={tmp_path}&port=5432"
    keep_settings(tmp_path, {"DATABASE_URL": url, **KEYS})
    done = manage(tmp_path, "secrets", "keys")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.endswith(": run `make up`\n"), done.stderr


@pytest.mark.servers
def test_another_error_of_the_database_is_none_of_these(tmp_path: Path) -> None:
    program = "from django.db import connection; connection.cursor().execute('SELECT 1 / 0')"
    done = manage(
        tmp_path, "shell", "--no-imports", "-c", program, DATABASE_URL=os.environ["DATABASE_URL"], **KEYS
    )
    assert done.returncode == 1 and "division by zero" in done.stderr, done.stderr


def test_settings_that_are_named_in_part_are_not_completed(tmp_path: Path) -> None:
    keep_settings(tmp_path, {"DATABASE_URL": "postgresql://kept@127.0.0.1/kept"})
    done = manage(tmp_path, "doctor", SECRET_KEY="x")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith(NO_DATABASE)


def test_what_make_up_has_kept_is_used(tmp_path: Path) -> None:
    url = "postgresql://kept@127.0.0.1:1/kept"
    keep_settings(tmp_path, {"DATABASE_URL": url, "SECRET_KEY": "x", "BEATKEEPER_POOL": "kept"})
    shown = "from django.conf import settings; print(settings.DATABASE_URL, settings.POOL)"
    assert manage(tmp_path, "shell", "--no-imports", "-c", shown).stdout.split() == [url, "kept"]
    shown_with_pool = manage(tmp_path, "shell", "--no-imports", "-c", shown, BEATKEEPER_POOL="mine")
    assert shown_with_pool.stdout.split() == [url, "mine"]


def test_what_is_kept_is_private_and_forgotten_with_another_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEATKEEPER_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("CELERY_BROKER_URL", "amqp://me@broker//")
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    keep_settings(tmp_path, {"SECRET_KEY": "x"})
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert kept_settings(CHECKOUT) == json.loads(file.read_text())
    assert kept_settings(CHECKOUT)["CELERY_BROKER_URL"] == "amqp://me@broker//"
    assert "SOMETHING_ELSE" not in kept_settings(CHECKOUT)
    keep_settings(tmp_path, None)
    assert kept_settings(CHECKOUT) == {}
