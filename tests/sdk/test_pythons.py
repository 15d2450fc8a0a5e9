"""Other Pythons that the SDK promises and this machine has: a worker of each, with real processes and a real broker."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.sdk.pythons import found, with_celery
from tests.sdk.worker.celery_stage import CeleryStage
from tests.sdk.worker.test_celery_versions import runs_of_every_kind_end_well
from tests.support.processes import Processes, RealProcess

OURS = f"{sys.version_info.major}.{sys.version_info.minor}"
# All else runs on our own.
OTHERS = [version for version in ("3.10", "3.11", "3.12", "3.13", "3.14") if version != OURS]
OLDEST = "oldest"


class ProcessesOf(Processes):
    def __init__(self, folder: Path, interpreter: Path) -> None:
        super().__init__(folder)
        self.interpreter = interpreter

    def python(
        self, *arguments: str, env: Mapping[str, str | None] | None = None, name: str = ""
    ) -> RealProcess:
        return self.start(str(self.interpreter), "-m", *arguments, env=env, name=name or arguments[0])


class OtherPythonStage(CeleryStage):
    site = Path()

    def environment(self, **changes: str) -> dict[str, str]:
        return super().environment(PYTHONPATH=str(self.site), **changes)


@pytest.fixture
def stage(version: str, tmp_path: Path, broker_url: str) -> Iterator[OtherPythonStage]:
    tried = OTHERS if version == OLDEST else [version]
    version, interpreter = next(((one, python) for one in tried if (python := found(one))), ("", None))
    if interpreter is None:
        pytest.skip(f"this machine has no Python {' or '.join(tried)}")
    processes = ProcessesOf(tmp_path, interpreter)
    stage = OtherPythonStage(processes, tmp_path, broker_url)
    stage.site = with_celery(interpreter, version)
    said = processes.python("celery", "--version", env=dict(stage.environment()), name="version")
    assert said.wait() == 0 and said.text().startswith("5.7"), said.text()
    yield stage
    processes.stop_all()
    stage.close()


# The oldest that is there in the suite, all when there is time.
@pytest.mark.parametrize(
    "version", [OLDEST, *(pytest.param(version, marks=pytest.mark.chaos) for version in OTHERS)]
)
def test_runs_retries_cancels_and_survives_a_killed_child(stage: OtherPythonStage) -> None:
    runs_of_every_kind_end_well(stage)
