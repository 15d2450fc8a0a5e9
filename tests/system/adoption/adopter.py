"""Code bases that install the wheel, as teams would: copies of tests/samples/, with their few changed lines."""

import shutil
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import CHECKOUT, Processes, RealProcess

SAMPLE = CHECKOUT / "tests" / "samples" / "codebase"
OURS = ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "CELERY_BROKER_URL", "LOG_STORE_URL", "SECRET_KEY")


def run_to_end(command: list[str], cwd: Path = CHECKOUT, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done.stdout


@dataclass(frozen=True)
class Sample:
    """What differs between the code bases."""

    folder: str
    # How `celery -A` names the app, and what begins its settings' names.
    app: str
    prefix: str
    notes: str
    # Tasks by what they do, as `module:function`.
    planned: str
    retried: str
    long: str
    own: str
    first_line: str


FLASK = Sample(
    folder="flask",
    app="wsgi.celery",
    prefix="SHOP",
    notes="SELECT text, run, attempt FROM note ORDER BY id",
    planned="shop.tasks:bill",
    retried="shop.tasks:order_stock",
    long="shop.tasks:count_stock",
    own="shop.tasks:thank",
    first_line="import wsgi",
)
DJANGO = Sample(
    folder="django",
    app="clinic",
    prefix="CLINIC",
    notes="SELECT text, run, attempt FROM appointments_note ORDER BY id",
    planned="appointments.tasks:remind",
    retried="appointments.tasks:fetch_results",
    long="appointments.tasks:recalculate",
    own="appointments.tasks:greet",
    first_line="import os, django; os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'clinic.settings'); django.setup()",
)


@dataclass(frozen=True)
class Note:
    text: str
    run: str
    attempt: int


class CodeBase:
    """A copy that has adopted the wheel, or not yet. Nothing of ours is on its path or in its environment."""

    def __init__(
        self, sample: Sample, folder: Path, python: Path, processes: Processes, broker: str, queue: str
    ) -> None:
        self.sample, self.python, self.queue = sample, python, queue
        self.folder = folder / sample.folder
        self.database = folder / f"{sample.folder}.sqlite3"
        self._processes, self._broker = processes, broker
        self.platform_is_at: dict[str, str] = {}
        shutil.copytree(CHECKOUT / "tests" / "samples" / sample.folder, self.folder)

    def adopt(self) -> int:
        """How many lines that took."""
        patch = (self.folder / "adopt.patch").read_text()
        run_to_end(["git", "apply", "adopt.patch"], cwd=self.folder)
        return sum(line[0] in "+-" and line[:3] not in ("+++", "---") for line in patch.splitlines() if line)

    def env(self) -> dict[str, str | None]:
        prefix = self.sample.prefix
        return {
            **dict.fromkeys(OURS),
            "PYTHONPATH": None,
            f"{prefix}_BROKER_URL": self._broker,
            f"{prefix}_QUEUE": self.queue,
            f"{prefix}_DATABASE": str(self.database),
            **self.platform_is_at,
        }

    def start(self, *arguments: str, **env: str) -> RealProcess:
        changed = {**self.env(), **env}
        return self._processes.start(
            str(self.python), *arguments, env=changed, name=self.sample.folder, cwd=self.folder
        )

    def worker(self, *arguments: str, **env: str) -> RealProcess:
        return self.start(
            *("-m", "celery", "-A", self.sample.app, "worker", "-l", "info", "-c", "2", "-Q", self.queue),
            *("-n", f"{self.sample.folder}@%h", *arguments),
            **env,
        )

    def script(self, text: str, **env: str) -> RealProcess:
        names = ("planned", "retried", "long", "own")
        modules = {name: getattr(self.sample, name).partition(":") for name in names}
        imports = [f"from {module} import {task} as {name}" for name, (module, _, task) in modules.items()]
        return self.start("-c", "\n".join([self.sample.first_line, *imports, text]), **env)

    def beatkeeper(self, act: str, *arguments: str) -> RealProcess:
        return self.start("-m", "beatkeeper", act, "--app", self.sample.app, *arguments)

    def notes(self) -> list[Note]:
        """Read what its tasks wrote into its own database."""
        try:
            with closing(sqlite3.connect(self.database, timeout=30)) as books:
                return [Note(*row) for row in books.execute(self.sample.notes)]
        except sqlite3.OperationalError:
            return []

    def noted(self, text: str) -> list[Note]:
        return [note for note in self.notes() if note.text.startswith(text)]
