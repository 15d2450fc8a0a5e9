"""The wheel holds the SDK alone, and lives beside django-auditlog and somebody's own `jobs`."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from scheduler_project.sdk import __version__
from tests.support.processes import CHECKOUT
from tests.system.adoption.adopter import SAMPLE, run_to_end


def test_the_wheel_holds_the_sdk_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"beatkeeper"}
    assert {"beatkeeper/__init__.py", "beatkeeper/ledger/postgres.sql", "beatkeeper/py.typed"} <= set(names)


def test_the_base_install_needs_celery_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(metadata).decode().partition("\n\n")[0].splitlines()
    needed = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    assert [one for one in needed if "extra ==" not in one] == ["celery>=5.3"]
    assert "Requires-Python: >=3.10" in lines and f"Version: {__version__}" in lines


def test_the_record_names_nothing_but_beatkeeper(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [record] = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
        paths = [line.partition(",")[0] for line in archive.read(record).decode().splitlines()]
    assert {path.split("/")[0].partition("-")[0] for path in paths} == {"beatkeeper"}


def test_every_module_of_it_works_without_what_the_extras_bring(adopter: Path) -> None:
    """A worker over HTTPS has neither a driver of the database nor keys of secrets."""
    output = _python(
        adopter,
        "import importlib, pkgutil, sys\n"
        "extras = ('psycopg', 'cryptography', 'django', 'requests', 'httpx')\n"
        "sys.modules.update(dict.fromkeys(extras))\n"
        "import beatkeeper\n"
        "missing = []\n"
        "for module in pkgutil.walk_packages(beatkeeper.__path__, 'beatkeeper.'):\n"
        "    if module.name.endswith('.__main__'): continue\n"
        "    try: importlib.import_module(module.name)\n"
        "    except ImportError: missing.append(module.name)\n"
        "print(missing)",
    )
    # The ledger over the database and its connection, which is opened by its address alone.
    assert output == "['beatkeeper.ledger.postgres', 'beatkeeper.ledger.postgres_connection']"


DOCUMENTS = "\n".join(
    path.read_text() for path in [CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")]
)


def documented(pattern: str) -> list[str]:
    return sorted(set(re.findall(pattern, DOCUMENTS, re.MULTILINE)))


@pytest.mark.parametrize(
    "statement", documented(r"(from beatkeeper[\w.]* import [\w, ]+|^import beatkeeper[\w.]*)")
)
def test_every_import_of_the_documents_works(adopter: Path, statement: str) -> None:
    _python(adopter, statement)


@pytest.mark.parametrize("module", documented(r"python -m (beatkeeper[\w.]*)"))
def test_every_module_that_the_documents_start_is_there(adopter: Path, module: str) -> None:
    assert "usage:" in run_to_end([str(adopter), "-m", module, "--help"])


@pytest.mark.parametrize("command", documented(r"(?:^|`)beatkeeper (\w+)"))
def test_every_command_of_the_documents_is_there(adopter: Path, command: str) -> None:
    assert "usage:" in run_to_end([str(adopter.parent / "beatkeeper"), command, "--help"])


def test_the_documents_name_imports_and_commands() -> None:
    assert "from beatkeeper import Beatkeeper" in documented(r"(from beatkeeper import \w+)")
    assert {"plan", "apply", "drift"} <= set(documented(r"(?:^|`)beatkeeper (\w+)"))
    assert documented(r"python -m (beatkeeper[\w.]*)")


def checked(adopter: Path, tmp_path: Path, text: str, **env: str) -> str:
    """Read by the type checker as an adopter's would: from the installed wheel."""
    program = tmp_path / "shop.py"
    program.write_text(text)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(adopter), "--no-incremental"]
    config = ["--config-file", os.devnull, "--follow-imports", "silent", "--ignore-missing-imports"]
    command = [*mypy, *config, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **env})
    return done.stdout + done.stderr


def test_whoever_uses_it_finds_types(adopter: Path, tmp_path: Path) -> None:
    output = checked(
        adopter,
        tmp_path,
        "from datetime import datetime, timezone\n"
        "from beatkeeper import Beatkeeper, PlatformAway, RequestedRun\n"
        "def ask(keeper: Beatkeeper, task: object) -> str:\n"
        "    try:\n"
        "        run = keeper.schedule(task, at=datetime.now(timezone.utc), key='k')\n"
        "    except PlatformAway:\n"
        "        return ''\n"
        "    reveal_type(run)\n"
        "    return run.state\n"
        "def wrong(keeper: Beatkeeper) -> int:\n"
        "    return keeper.run_now(None, when=3)\n",
    )
    assert 'Revealed type is "beatkeeper.host.requested_run.RequestedRun"' in output, output
    assert (
        'Unexpected keyword argument "when"' in output and 'got "RequestedRun", expected "int"' in output
    ), output
    assert output.count("error:") == 2, output


DECLARED = """
from datetime import datetime, timezone
from typing import Any
from beatkeeper import Beatkeeper
from celery import Celery, shared_task

app: Any = Celery("shop")
keeper = Beatkeeper(app)

@keeper.job(every=60)
@shared_task
def settle(day: int) -> str:
    return str(day)

reveal_type(settle.run_now(kwargs={"day": 1}, key="k"))
reveal_type(settle.schedule(at=datetime.now(timezone.utc)))
reveal_type(settle.delay(1))
reveal_type(settle.s(1))
settle.run_now(when=3)
settle.delay("monday")

@keeper.job()
def plain() -> None: ...
"""


@pytest.mark.parametrize("celery_is_typed", [False, True])
def test_a_declared_task_has_its_type_and_both_methods(
    adopter: Path, tmp_path: Path, celery_is_typed: bool
) -> None:
    env = {"MYPYPATH": str(stubs_of_celery(tmp_path / "stubs"))} if celery_is_typed else {}
    output = checked(adopter, tmp_path, DECLARED, **env)
    assert output.count('Revealed type is "beatkeeper.host.requested_run.RequestedRun"') == 2, output
    kept = "celery.result.AsyncResult[str]", "celery.canvas.Signature[str]"
    assert [f'Revealed type is "{kind}"' in output for kind in kept] == [celery_is_typed] * 2, output
    assert 'Unexpected keyword argument "when"' in output, output
    assert ('incompatible type "str"; expected "int"' in output) is celery_is_typed, output
    # A function is no task, whatever is known of Celery.
    assert output.count("[call-overload]") == 1, output
    assert "attr-defined" not in output, output


def stubs_of_celery(folder: Path) -> Path:
    """Those of the environment that the tests run in: an adopter may have celery-types, or not."""
    folder.mkdir()
    for package in ("celery", "kombu", "amqp", "vine", "billiard"):
        (folder / package).symlink_to(Path(sysconfig.get_path("purelib"), f"{package}-stubs"))
    return folder


def test_the_console_script_is_there(adopter: Path) -> None:
    output = run_to_end([str(adopter.parent / "beatkeeper"), "--help"])
    assert "plan|apply|drift" in output


def test_it_lives_beside_django_auditlog_and_a_package_named_jobs(adopter: Path) -> None:
    output = _python(
        adopter,
        "import sys; from beatkeeper import Beatkeeper\n"
        "django = 'django.apps' in sys.modules\n"
        "import auditlog, jobs.openings\n"
        "print(jobs.openings.VACANCIES[0], 'site-packages' in auditlog.__file__, django)",
    )
    assert output == "baker True False"


def test_django_auditlog_is_whole_after_the_installation(adopter: Path) -> None:
    output = _python(
        adopter,
        "import importlib.metadata as m\n"
        "print(all(file.locate().exists() for file in m.files('django-auditlog')),"
        " [str(f) for f in m.files('beatkeeper') if str(f).split('/')[0] in ('jobs', 'runs', 'auditlog', 'tests')])",
    )
    assert output == "True []"


def test_a_decorated_task_is_the_task_it_was(adopter: Path) -> None:
    output = _python(
        adopter,
        "from shop.celery import app, settle, tidy\n"
        "print(settle(), type(settle) is type(tidy), settle.name in app.tasks, callable(settle.delay))",
    )
    assert output == "settled the day\nsettled True True True"


def test_nothing_of_the_host_app_is_changed(adopter: Path) -> None:
    output = _python(
        adopter,
        "from celery import Celery; from shop.celery import app\n"
        "plain = Celery('plain', broker=app.conf.broker_url)\n"
        "plain.conf.update(task_default_queue=app.conf.task_default_queue, task_ignore_result=True)\n"
        "changed = {k for k in plain.conf.table() if plain.conf[k] != app.conf[k]}\n"
        "print(sorted(changed))",
    )
    assert output == "[]"


def _python(python: Path, program: str) -> str:
    env = {
        "SHOP_BROKER_URL": "amqp://127.0.0.1:1//",
        "SHOP_QUEUE": "shop",
        "SHOP_LOG_STORE": "file:///nonexistent",
        "BEATKEEPER_DATABASE_URL": "postgresql://127.0.0.1:1/none",
    }
    return run_to_end([str(python), "-c", program], cwd=SAMPLE, env=env).strip()
