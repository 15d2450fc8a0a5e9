"""Test /api/v1/runs/{id}/attempts and /log."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pytest_django import Settings

from runs.models import Attempt, LiveRun, Run
from runs.states import FinalState, LiveState
from scheduler_project.sdk.ids import attempt_id
from scheduler_project.sdk.logs.capture import AttemptLog
from scheduler_project.sdk.logs.folder import FolderLogStore
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_finished_run, make_run, make_worker, post_job

pytestmark = pytest.mark.django_db


@pytest.fixture
def store(tmp_path: Path, settings: Settings) -> FolderLogStore:
    settings.LOG_STORE_URL = f"file://{tmp_path}"
    return FolderLogStore(tmp_path)


def write(store: FolderLogStore, run_id: Any, claim_seq: int, *texts: str) -> None:
    with store.open(run_id, claim_seq) as file:
        for text in texts:
            line = {"t": "2026-11-18T12:00:00.000+00:00", "s": "stdout", "l": "", "m": text}
            file.write(json.dumps(line).encode() + b"\n")


def finish_attempt(store: FolderLogStore, run: Run, claim_seq: int, number: int, **fields: Any) -> Attempt:
    pointer = store.seal(run.pk, claim_seq, "acme", uuid4())
    store.discard(run.pk, claim_seq)
    where = (
        {"log_object": pointer.object, "log_offset": pointer.offset, "log_length": pointer.length}
        if pointer
        else {}
    )
    values = {
        "outcome": "succeeded",
        "next_state": "succeeded",
        "worker": uuid4(),
        "worker_name": "w1",
        **where,
        **fields,
    }
    return Attempt.objects.create(
        id=attempt_id(run.pk, claim_seq),
        run=run,
        tenant_id=run.tenant_id,
        number=number,
        claim_seq=claim_seq,
        started_at=run.planned_at,
        finished_at=run.planned_at,
        **values,
    )


def test_attempts_are_listed_oldest_first_with_the_running_one_last(
    caller: Caller, store: FolderLogStore
) -> None:
    job = post_job(caller.tenant)
    node = make_worker(job.pool, name="w2")
    live = make_run(job, LiveState.RUNNING, worker=node, attempt=2, claim_seq=2)
    run = Run.objects.get(pk=live.pk)
    failed = {
        "outcome": "failed",
        "next_state": "delayed",
        "error_class": "transient",
        "error_type": "OSError",
    }
    finish_attempt(store, run, 1, 1, **failed)
    first, second = caller.get(f"runs/{run.pk}/attempts").json()["results"]
    assert (first["number"], first["state"], first["next_state"], first["worker"]) == (
        1,
        "failed",
        "delayed",
        "w1",
    )
    assert first["error"]["type"] == "OSError"
    assert (second["number"], second["state"], second["worker"]) == (2, "running", "w2")
    assert second["finished_at"] is None
    assert caller.get(first["links"]["log"]).status_code == 200


def test_the_log_of_a_finished_run_is_text_or_json_lines(caller: Caller, store: FolderLogStore) -> None:
    run = make_finished_run(post_job(caller.tenant))
    write(store, run.pk, 1, "hello", "wörld")
    finish_attempt(store, run, 1, 1)
    response = caller.get(f"runs/{run.pk}/log")
    assert (
        response["Content-Type"] == "text/plain; charset=utf-8"
        and response.content.decode() == "hello\nwörld\n"
    )
    lines = caller.get(f"runs/{run.pk}/log", format="jsonl")
    assert lines["Content-Type"] == "application/x-ndjson"
    assert [json.loads(line)["text"] for line in lines.content.splitlines()] == ["hello", "wörld"]
    assert json.loads(lines.content.splitlines()[0])["stream"] == "stdout"


def test_a_line_that_a_worker_made_up_is_shown_as_it_is(caller: Caller, store: FolderLogStore) -> None:
    live = make_run(post_job(caller.tenant), LiveState.RUNNING)
    made_up = [b'{"t": 1, "s": 2, "l": 3, "m": 4}', b"[" * 100_000, b'"text"', b"\xff"]
    with store.open(live.pk, 1) as file:
        file.write(b"\n".join(made_up))
        file.write(b'\n{"t": "", "s": "", "l": "", "m": "half \\ud800"}\n')
    for form in ("text", "jsonl"):
        answer = caller.get(f"runs/{live.pk}/log", format=form)
        assert answer.status_code == 200 and answer.content.count(b"\n") == 5
        assert "half \N{REPLACEMENT CHARACTER}".encode() in answer.content


def test_the_log_of_a_running_attempt_is_read_while_it_runs(caller: Caller, store: FolderLogStore) -> None:
    live = make_run(post_job(caller.tenant), LiveState.RUNNING)
    assert caller.get(f"runs/{live.pk}/log").content == b""
    write(store, live.pk, 1, "so far")
    assert caller.get(f"runs/{live.pk}/log").content == b"so far\n"
    with store.open(live.pk, 1) as file:
        file.write(b'{"t": "half a li')
    assert caller.get(f"runs/{live.pk}/log").content.startswith(b"so far\n{")


def test_an_attempt_that_ends_between_the_looks_is_still_found(
    caller: Caller, store: FolderLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = make_run(post_job(caller.tenant), LiveState.RUNNING)
    run = Run.objects.get(pk=live.pk)
    write(store, run.pk, 1, "the whole of it")
    read_whole = FolderLogStore.read_whole

    def end_first(self: FolderLogStore, run_id: Any, claim_seq: int) -> bytes | None:
        monkeypatch.setattr(FolderLogStore, "read_whole", read_whole)
        finish_attempt(store, run, 1, 1)
        LiveRun.objects.filter(pk=run.pk).delete()
        return read_whole(self, run_id, claim_seq)

    monkeypatch.setattr(FolderLogStore, "read_whole", end_first)
    assert caller.get(f"runs/{run.pk}/log").content == b"the whole of it\n"


def test_each_attempt_has_its_own_log_and_the_latest_is_shown(caller: Caller, store: FolderLogStore) -> None:
    run = make_finished_run(post_job(caller.tenant), FinalState.DEAD)
    for number in (1, 2):
        write(store, run.pk, number, f"try {number}")
        finish_attempt(store, run, number, number)
    assert caller.get(f"runs/{run.pk}/log").content == b"try 2\n"
    assert caller.get(f"runs/{run.pk}/log", attempt=1).content == b"try 1\n"
    refusal(caller.get(f"runs/{run.pk}/log", attempt=3), 404)


def test_the_log_of_a_killed_worker_is_kept(caller: Caller, store: FolderLogStore) -> None:
    """Nobody sealed it: it still lies open."""
    run = make_finished_run(post_job(caller.tenant), FinalState.DEAD)
    finish_attempt(store, run, 1, 1, outcome="lost", next_state="dead")
    write(store, run.pk, 1, "last words")
    assert caller.get(f"runs/{run.pk}/log").content == b"last words\n"


def test_a_run_without_output_has_an_empty_log(caller: Caller, store: FolderLogStore) -> None:
    job = post_job(caller.tenant)
    for run in (make_run(job), make_finished_run(job, FinalState.SKIPPED)):
        assert caller.get(f"runs/{run.pk}/log").content == b""


def test_a_log_that_left_the_store_is_missing(caller: Caller, store: FolderLogStore) -> None:
    run = make_finished_run(post_job(caller.tenant))
    write(store, run.pk, 1, "x")
    attempt = finish_attempt(store, run, 1, 1)
    (store.root / attempt.log_object).unlink()
    assert "log" in refusal(caller.get(f"runs/{run.pk}/log"), 404)["detail"]


@pytest.mark.parametrize(
    ("query", "field"),
    [({"format": "xml"}, "format"), ({"attempt": "last"}, "attempt"), ({"last": "5"}, "last")],
)
def test_a_bad_question_is_refused(
    caller: Caller, store: FolderLogStore, query: dict[str, str], field: str
) -> None:
    run = make_finished_run(post_job(caller.tenant))
    refusal(caller.get(f"runs/{run.pk}/log", **query), 400, field)


def attempt_with(caller: Caller, store: FolderLogStore) -> str:
    """Return the path of a log of six lines."""
    live = make_run(post_job(caller.tenant), LiveState.RUNNING)
    log = AttemptLog(store, live.pk, 1)
    log.write("stdout", "\x1b[31mred\x1b[0m")
    for level in ("DEBUG", "INFO", "WARNING", "ERROR"):
        log.write("log", f"a {level}", level, "app", {"order": 5} if level == "ERROR" else None)
    log.write("stdout", "last")
    log.close()
    return f"runs/{live.pk}/log"


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"first": "3"}, [3, 4, 5, 6]),
        ({"first": "2", "lines": "2"}, [2, 3]),
        ({"first": "7"}, []),
        ({"tail": "2"}, [5, 6]),
        ({"tail": "2", "first": "2", "lines": "3"}, [3, 4]),
        ({"tail": "9", "first": "6"}, [6]),
        ({"level": "WARNING"}, [4, 5]),
        ({"level": "INFO", "tail": "2"}, [4, 5]),
        ({"level": "INFO", "first": "4", "lines": "1"}, [4]),
    ],
)
def test_a_window_of_a_log_is_read(
    caller: Caller, store: FolderLogStore, query: dict[str, str], numbers: list[int]
) -> None:
    found = caller.get(attempt_with(caller, store), format="jsonl", **query).content.splitlines()
    assert [json.loads(line)["number"] for line in found] == numbers


def test_a_line_brings_its_logger_and_what_it_was_given(caller: Caller, store: FolderLogStore) -> None:
    path = attempt_with(caller, store)
    line = json.loads(caller.get(path, format="jsonl", level="ERROR").content)
    assert (line["text"], line["logger"], line["extra"]) == ("a ERROR", "app", {"order": 5})
    assert caller.get(path, level="ERROR").content == b"app: a ERROR\n"


def test_colours_are_left_out_on_request(caller: Caller, store: FolderLogStore) -> None:
    path = attempt_with(caller, store)
    assert caller.get(path, lines="1").content == b"\x1b[31mred\x1b[0m\n"
    assert caller.get(path, lines="1", ansi="strip").content == b"red\n"


def test_a_log_is_downloaded_as_a_file(caller: Caller, store: FolderLogStore) -> None:
    path = attempt_with(caller, store)
    run = path.split("/")[1]
    assert caller.get(path, download="1")["Content-Disposition"] == f'attachment; filename="{run}.log"'
    answer = caller.get(path, download="1", format="jsonl")
    assert answer["Content-Disposition"] == f'attachment; filename="{run}.jsonl"'


@pytest.mark.parametrize(
    ("query", "field", "hint"),
    [
        ({"first": "0"}, "first", "1 to 999999999"),
        ({"lines": "-1"}, "lines", "1 to 999999999"),
        ({"tail": "many"}, "tail", "1 to 999999999"),
        ({"tail": "9" * 30}, "tail", "1 to 999999999"),
        ({"lines": "0000000001" + "9" * 20}, "lines", "1 to 999999999"),
        ({"first": "9" * 5000}, "first", "1 to 999999999"),
        ({"level": "LOUD"}, "level", "DEBUG or INFO"),
        ({"ansi": "no"}, "ansi", "keep or strip"),
        ({"download": "yes"}, "download", "1"),
        ({"form": "text"}, "form", ""),
    ],
)
def test_a_window_that_cannot_be_is_refused(
    caller: Caller, store: FolderLogStore, query: dict[str, str], field: str, hint: str
) -> None:
    answer = caller.get(attempt_with(caller, store), **query)
    assert answer.status_code == 400, answer.content
    assert field in answer.content.decode() and hint in answer.content.decode()


def test_a_line_of_an_earlier_version_has_its_place_for_a_number(
    caller: Caller, store: FolderLogStore
) -> None:
    live = make_run(post_job(caller.tenant), LiveState.RUNNING)
    write(store, live.pk, 1, "one", "two")
    found = caller.get(f"runs/{live.pk}/log", format="jsonl").content.splitlines()
    lines = [json.loads(line) for line in found]
    assert [(line["number"], line["logger"], line["extra"]) for line in lines] == [
        (1, "", None),
        (2, "", None),
    ]


def test_what_another_worker_wrote_does_not_act_on_a_terminal(caller: Caller, store: FolderLogStore) -> None:
    """One of an earlier version, or one that somebody else built."""
    live = make_run(post_job(caller.tenant), LiveState.RUNNING)
    write(store, live.pk, 1, "\x1b[2Jcleared", "\u202eturned", "\x1b[\x1b[m2J")
    with store.open(live.pk, 1) as file:
        file.write(b"no JSON \x1b]8;;http://evil.example\x07\n")
    for ansi in ("keep", "strip"):
        text = caller.get(f"runs/{live.pk}/log", ansi=ansi).content.decode()
        assert "\x1b[2J" not in text and "\x1b]" not in text and "\x07" not in text and "\u202e" not in text


def test_a_level_leaves_in_what_is_said_about_the_log(caller: Caller, store: FolderLogStore) -> None:
    live = make_run(post_job(caller.tenant), LiveState.RUNNING)
    log = AttemptLog(store, live.pk, 1)
    log.write("beatkeeper", "5 lines of 90 bytes are missing here", "WARNING")
    log.write("log", "quiet", "INFO", "app")
    assert b"are missing" in caller.get(f"runs/{live.pk}/log", level="ERROR").content
