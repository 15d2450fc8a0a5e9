"""Puts the named schemas of both apps into the OpenAPI document."""

from typing import Any

from jobs.api.schema import COMPONENTS as JOBS
from runs.api.schema import COMPONENTS as RUNS


def add_components(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(JOBS, **RUNS)
    return result
