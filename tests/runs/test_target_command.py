"""Commands as real processes: what they print, see and may, and that nothing of them stays."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from runs.targets import command
from runs.targets.command import execute
from scheduler_project.sdk.capture import AttemptLog
from scheduler_project.sdk.hand import Hand
from scheduler_project.sdk.log_store import FolderLogStore
from scheduler_project.sdk.outcomes import PermanentError
from scheduler_project.sdk.slots import SlotTable
from scheduler_project.sdk.targets import Attempt, TargetFailed
from tests.sdk.stage import gone
from tests.sdk.test_celery_target import make_claim
from tests.waiting import wait_until


class Runner:
    def __init__(self, folder: Path) -> None:
        self.store = FolderLogStore(folder)
        self.table = SlotTable.create(folder, 1)
        self.hand = Hand.take(self.table)

    def __call__(self, *argv: str, **env: str) -> dict[str, Any]:
        self.claim = make_claim({"kind": "command", "argv": list(argv), "env": env})
        log = AttemptLog(self.store, self.claim.run_id, 1)
        assert self.hand is not None
        self.hand.ask(self.claim.token)
        try:
            return execute(Attempt(self.claim, self.hand, log, "w"))
        finally:
            log.close()

    @property
    def log(self) -> str:
        return (self.store.read_open(self.claim.run_id, 1) or b"").decode()


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_output_of_both_streams_is_logged(run: Runner) -> None:
    assert run("sh", "-c", "echo out; echo err >&2; printf rest") == {"exit_code": 0}
    for stream, text in (("stdout", "out"), ("stderr", "err"), ("stdout", "rest")):
        assert f'"s": "{stream}", "l": "", "m": "{text}"' in run.log


def test_lines_come_while_it_runs(run: Runner) -> None:
    ended: list[int | None] = []

    def start() -> None:
        with pytest.raises(TargetFailed) as failed:
            run("sh", "-c", "echo first; exec sleep 30")
        ended.append(failed.value.exit_code)

    thread = threading.Thread(target=start)
    thread.start()
    wait_until(lambda: hasattr(run, "claim") and "first" in run.log, 5, "the first line")
    group, _ = wait_until(lambda: run.table.raw_body(0) if run.table.raw_body(0)[0] else None, 5, "its group")
    os.killpg(group, 9)
    thread.join()
    assert ended == [137]


def test_the_worker_s_environment_is_not_passed_on(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    run("env", PLACE="Berlin")
    assert "PLACE=Berlin" in run.log and f"BEATKEEPER_RUN={run.claim.run_id}" in run.log
    assert "DATABASE_URL" not in run.log and "secret" not in run.log


def test_there_is_no_input_to_wait_for(run: Runner) -> None:
    assert run("cat") == {"exit_code": 0}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_root_runs_it_as_nobody(run: Runner) -> None:
    run("id", "-u")
    assert '"m": "65534"' in run.log
    with pytest.raises(TargetFailed):
        run("cat", f"/proc/{os.getpid()}/environ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_root_refuses_where_it_cannot_become_nobody(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "can_change_user", lambda: False)
    with pytest.raises(PermanentError, match="as another user"):
        run("true")


@pytest.mark.parametrize(("code", "error_class"), [(1, "transient"), (3, "transient"), (127, "permanent")])
def test_an_exit_code_is_a_failure(run: Runner, code: int, error_class: str) -> None:
    with pytest.raises(TargetFailed) as failed:
        run("sh", "-c", f"exit {code}")
    assert (failed.value.exit_code, failed.value.error_class) == (code, error_class)


def test_a_command_that_is_not_there_is_permanent(run: Runner) -> None:
    with pytest.raises((TargetFailed, PermanentError)) as failed:
        run("/no/such/command")
    assert getattr(failed.value, "error_class", "permanent") == "permanent"


def test_an_end_by_signal_is_named(run: Runner) -> None:
    with pytest.raises(TargetFailed, match="SIGKILL") as failed:
        run("sh", "-c", "kill -9 $$")
    assert failed.value.exit_code == 137


def test_what_it_leaves_running_is_ended_with_it(run: Runner) -> None:
    run("sh", "-c", "sleep 300 & echo $!")
    pid = int(run.log.split('"m": "')[1].split('"')[0])
    wait_until(lambda: gone(pid), 5, "the end of its child")


def test_output_in_pieces_of_characters_is_put_together(run: Runner) -> None:
    run("sh", "-c", r"printf '\303'; sleep 0.1; printf '\244\377\n'")
    assert "\\u00e4\\ufffd" in run.log


def test_its_group_stands_in_the_slot(run: Runner) -> None:
    run("true")
    group, leader_started = run.table.raw_body(0)
    assert group > 1 and leader_started > 0 and group != os.getpgrp()


def test_arguments_are_no_shell(run: Runner) -> None:
    run("echo", "$HOME; rm -rf *")
    assert "$HOME; rm -rf *" in run.log
