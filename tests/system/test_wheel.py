"""The wheel holds the SDK alone, and lives beside django-auditlog and somebody's own `jobs`."""

import zipfile
from pathlib import Path

from tests.system.adopter import SAMPLE, run_to_end


def test_the_wheel_holds_the_sdk_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"beatkeeper"}
    assert {"beatkeeper/__init__.py", "beatkeeper/ledger.sql", "beatkeeper/py.typed"} <= set(names)


def test_it_lives_beside_django_auditlog_and_a_package_named_jobs(adopter: Path) -> None:
    told = _python(
        adopter,
        "import sys; from beatkeeper import Beatkeeper\n"
        "django = 'django.apps' in sys.modules\n"
        "import auditlog, jobs.openings\n"
        "print(jobs.openings.VACANCIES[0], 'site-packages' in auditlog.__file__, django)",
    )
    assert told == "baker True False"


def test_django_auditlog_is_whole_after_the_installation(adopter: Path) -> None:
    told = _python(
        adopter,
        "import importlib.metadata as m\n"
        "print(all(file.locate().exists() for file in m.files('django-auditlog')),"
        " [str(f) for f in m.files('beatkeeper') if str(f).split('/')[0] in ('jobs', 'runs', 'auditlog', 'tests')])",
    )
    assert told == "True []"


def test_a_decorated_task_is_the_task_it_was(adopter: Path) -> None:
    told = _python(
        adopter,
        "from shop.celery import app, settle, tidy\n"
        "print(settle(), type(settle) is type(tidy), settle.name in app.tasks, callable(settle.delay))",
    )
    assert told == "settled the day\nsettled True True True"


def test_nothing_of_the_host_app_is_changed(adopter: Path) -> None:
    told = _python(
        adopter,
        "from celery import Celery; from shop.celery import app\n"
        "plain = Celery('plain', broker=app.conf.broker_url)\n"
        "plain.conf.update(task_default_queue=app.conf.task_default_queue, task_ignore_result=True)\n"
        "changed = {k for k in plain.conf.table() if plain.conf[k] != app.conf[k]}\n"
        "print(sorted(changed))",
    )
    assert told == "[]"


def _python(python: Path, program: str) -> str:
    env = {
        "SHOP_BROKER_URL": "amqp://127.0.0.1:1//",
        "SHOP_QUEUE": "shop",
        "SHOP_LOG_STORE": "file:///nonexistent",
        "BEATKEEPER_DATABASE_URL": "postgresql://127.0.0.1:1/none",
    }
    return run_to_end([str(python), "-c", program], cwd=SAMPLE, env=env).strip()
