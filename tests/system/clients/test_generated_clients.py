"""Clients that are generated of the OpenAPI document create, run, read, cancel, edit and delete."""

import re
import shutil
from pathlib import Path

from tests.support.processes import PYTHON
from tests.system.clients.conftest import PRINTED, Served, run_to_end

HERE = Path(__file__).parent
# Uploads of workers, whose bodies are no JSON.
NOT_GENERATED = {
    ("PUT", "/api/v1/worker/logs/{run_id}/{claim_seq}"),
    ("POST", "/api/v1/worker/logs/{run_id}/{claim_seq}/lines"),
}


def test_the_client_of_openapi_python_client_does_the_whole_cycle(served: Served, tmp_path: Path) -> None:
    package = tmp_path / "beatkeeper_client"
    said = run_to_end(
        [PYTHON, "-m", "openapi_python_client", "generate", "--meta", "none"]
        + ["--path", str(served.document), "--output-path", str(package)]
    )
    assert set(re.findall(r"WARNING parsing (\w+) (\S+) within", said)) == NOT_GENERATED, said
    assert said.count("WARNING") == len(NOT_GENERATED), said
    cycle = [PYTHON, str(HERE / "cycle.py"), served.url, served.key, served.running, PRINTED]
    run_to_end(cycle, PYTHONPATH=str(tmp_path))


def test_a_program_with_the_types_of_openapi_typescript_does_the_whole_cycle(
    served: Served, npm_programs: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "node_modules").symlink_to(npm_programs.parent)
    (folder / "package.json").write_text('{"type": "module"}')
    shutil.copy(HERE / "cycle.ts", folder)
    run_to_end(
        [str(npm_programs / "openapi-typescript"), str(served.document), "-o", str(folder / "schema.d.ts")]
    )
    strict = ["--strict", "--module", "nodenext", "--target", "es2022", "--skipLibCheck"]
    run_to_end([str(npm_programs / "tsc"), *strict, str(folder / "cycle.ts")])
    run_to_end(["node", str(folder / "cycle.js"), served.url, served.key, served.running, PRINTED])


def test_redocly_finds_no_error_in_the_document(served: Served, npm_programs: Path) -> None:
    run_to_end(
        [str(npm_programs / "redocly"), "lint", "--config", str(HERE / "redocly.yaml"), str(served.document)]
    )
