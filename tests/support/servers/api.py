"""The API and the admin as they are served in production."""

from collections.abc import Mapping

from tests.support.certificates import OwnCA
from tests.support.ports import answers
from tests.support.processes import PYTHON, Processes, RealProcess
from tests.support.waiting import wait_until


def serve(
    processes: Processes,
    port: int,
    env: Mapping[str, str | None],
    *,
    ca: OwnCA | None = None,
    number: int = 1,
) -> RealProcess:
    command = [PYTHON, "manage.py", "serve", "--bind", f"127.0.0.1:{port}", "--processes", str(number)]
    if ca is not None:
        command += ["--certificate", str(ca.certificate), "--private-key", str(ca.key)]
    process = processes.start(*command, env=env, name="api")
    wait_until(lambda: answers(port) or not process.is_alive(), 60, "the API")
    assert process.is_alive(), process.text()
    return process
