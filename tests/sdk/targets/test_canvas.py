"""What a run sends in a real worker: chains, groups and chords are Celery's own, and nothing takes its place."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.worker.celery_stage import CeleryStage
from tests.support.processes import Processes, RealProcess
from tests.support.waiting import wait_until


class CanvasStage(CeleryStage):
    def start(self, folder: Path, slots: int = 2) -> RealProcess:
        """Store results in a folder, where the parts of a chord find each other."""
        (folder / "results").mkdir()
        return self.worker(
            slots,
            app="tests.sdk.targets.canvas_tasks",
            CANVAS_QUEUE=self.host_queue,
            CANVAS_RESULTS=f"file://{folder}/results",
        )

    def results(self, of: str, count: int) -> list[Any]:
        wait_until(lambda: len(self.events(of)) >= count, 30, f"the {of}")
        return sorted(entry["value"] for entry in self.events(of))


@pytest.fixture
def stage(processes: Processes, tmp_path: Path, broker_url: str) -> Iterator[CanvasStage]:
    stage = CanvasStage(processes, tmp_path, broker_url)
    yield stage
    processes.stop_all()
    stage.close()


def test_chains_groups_and_chords_of_declared_tasks(stage: CanvasStage, tmp_path: Path) -> None:
    worker = stage.start(tmp_path)
    run = stage.add_run_with_wakeup("canvas.sends")
    assert stage.wait_for_end(run)["next"] == "succeeded"
    assert stage.results("chain", 1) == [6]
    assert stage.results("group", 3) == [0, 1, 2]
    [numbers] = stage.results("chord", 1)
    assert sorted(numbers) == [1, 2, 3]
    ids = {entry["run"] for of in ("chain", "group", "chord") for entry in stage.events(of)}
    assert len(ids) == 5 and str(run) not in ids
    assert worker.terminate() == 0


def test_a_run_that_replaces_itself_is_dead_and_sends_nothing(stage: CanvasStage, tmp_path: Path) -> None:
    worker = stage.start(tmp_path, slots=1)
    refused = stage.wait_for_end(stage.add_run_with_wakeup("canvas.replaces"))
    assert (refused["next"], refused["error_class"]) == ("dead", "user")
    assert "A run cannot replace itself" in refused["error_line"]
    # What it had sent would lie before this in the queue, and one child takes them one by one.
    stage.send("canvas.reports", 1, "later")
    assert stage.results("later", 1) == [1]
    assert stage.events("replaced") == []
    assert worker.terminate() == 0
