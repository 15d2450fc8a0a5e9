"""What a measurement leaves behind: one line to read and one JSON file, with the plain way measured beside it."""

import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("BEATKEEPER_BENCH_DIR", "build/bench"))

Tell = Callable[..., None]


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    def write(name: str, line: str, **figures: Any) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        machine = {"cpus": os.cpu_count(), "load": os.getloadavg(), "python": platform.python_version()}
        path = FOLDER / f"{name}.json"
        path.write_text(
            json.dumps({"name": name, **figures, "machine": machine}, indent=2, default=str) + "\n"
        )
        with capsys.disabled():
            sys.stdout.write(f"\n{line}  [{path}]\n")

    return write
