from pathlib import Path

import pytest

from tests.sdk.stage import Stage
from tests.support.processes import Processes


@pytest.fixture
def stage(processes: Processes, tmp_path: Path) -> Stage:
    return Stage(processes, tmp_path)
