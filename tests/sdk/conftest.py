from pathlib import Path

import pytest

from tests.processes import Processes
from tests.sdk.stage import Stage


@pytest.fixture
def stage(processes: Processes, tmp_path: Path) -> Stage:
    return Stage(processes, tmp_path)
