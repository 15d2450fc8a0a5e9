import json
import logging
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from scheduler_project.sdk.logs.capture import AttemptLog, captured
from scheduler_project.sdk.logs.folder import FolderLogStore
from scheduler_project.sdk.secret_values.names import secret_values_of


class Log:
    def __init__(self, folder: Path, **options: Any) -> None:
        self.store, self.run = FolderLogStore(folder), uuid4()
        self.log = AttemptLog(self.store, self.run, 1, **options)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.store.read_open(self.run, 1) or b"").splitlines()]

    def texts(self) -> list[str]:
        return [line["m"] for line in self.lines()]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_streams_and_records_come_with_time_and_level(log: Log) -> None:
    with captured(log.log):
        print("out")  # noqa: T201
        print("err", file=sys.stderr)  # noqa: T201
        logging.getLogger("app").error("broken %s", "thing")
    assert [(line["s"], line["l"], line["m"]) for line in log.lines()] == [
        ("stdout", "", "out"),
        ("stderr", "", "err"),
        ("log", "ERROR", "broken thing"),
    ]
    assert [line.get("g", "") for line in log.lines()] == ["", "", "app"]
    assert [line["n"] for line in log.lines()] == [1, 2, 3]
    assert all(line["t"].endswith("+00:00") for line in log.lines())


def test_a_line_is_on_disk_when_it_is_complete(log: Log) -> None:
    with captured(log.log):
        print("half", end="")  # noqa: T201
        assert log.texts() == []
        print(" whole")  # noqa: T201
        assert log.texts() == ["half whole"]
        print("rest", end="")  # noqa: T201
    assert log.texts() == ["half whole", "rest"]


def test_without_output_there_is_no_file(log: Log) -> None:
    with captured(log.log):
        pass
    assert log.log.empty
    assert log.store.read_open(log.run, 1) is None


def test_afterwards_streams_are_as_before(log: Log) -> None:
    before = sys.stdout, sys.stderr, list(logging.getLogger().handlers)
    with captured(log.log):
        assert sys.stdout is not before[0]
    assert (sys.stdout, sys.stderr, list(logging.getLogger().handlers)) == before


def test_what_is_printed_also_goes_where_it_went(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    with captured(log.log):
        print("seen")  # noqa: T201
    assert capsys.readouterr().out == "seen\n"


def test_threads_do_not_tear_lines(log: Log) -> None:
    def talk(word: str) -> None:
        for _ in range(200):
            sys.stdout.write(word * 10 + "\n")

    with captured(log.log):
        threads = [threading.Thread(target=talk, args=(word,)) for word in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(set(log.texts())) == ["a" * 10, "b" * 10, "c" * 10, "d" * 10]
    assert len(log.texts()) == 800


def test_secrets_are_masked(tmp_path: Path) -> None:
    target = {
        "env": {"API_TOKEN": "s3cr3t", "PLACE": "Berlin"},
        "headers": {"Authorization": "Bearer abcdef"},
    }
    log = Log(tmp_path, mask=secret_values_of(target))
    with captured(log.log):
        print("s3cr3t in Berlin, abcdef, Bearer abcdef")  # noqa: T201
    assert log.texts() == ["*** in Berlin, ***, ***"]


def test_short_values_are_not_masked(tmp_path: Path) -> None:
    log = Log(tmp_path, mask=["1", "", "no"])
    log.log.write("stdout", "no 1")
    assert log.texts() == ["no 1"]


def test_what_celery_redirects_is_not_there_twice(log: Log) -> None:
    with captured(log.log):
        logging.getLogger("celery.redirected").warning("printed before")
        logging.getLogger("celery.app.trace").info("Task succeeded")
        logging.getLogger("celery.app.trace").error("Task raised")
    assert [(line["g"], line["m"]) for line in log.lines()] == [("celery.app.trace", "Task raised")]


def test_a_log_that_cannot_be_written_costs_neither_the_output_nor_the_body(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log(tmp_path / "file")
    (tmp_path / "file").write_text("not a folder")
    with captured(log.log):
        print("not in the log")  # noqa: T201
        print("and on")  # noqa: T201
    assert capsys.readouterr().out == "not in the log\nand on\n"
    assert log.log.empty


def test_the_name_of_a_logger_is_masked(tmp_path: Path) -> None:
    log = Log(tmp_path, mask=["s3cr3t"])
    with captured(log.log):
        logging.getLogger("client.s3cr3t").error("hello")
    assert log.lines()[0]["g"] == "client.***"
