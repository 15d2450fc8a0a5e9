"""Tell schemathesis what the OpenAPI document cannot: what there is, formats, and refusals that no schema foresees."""

import gzip
import json
import os
import random
import re
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import schemathesis
from hypothesis import strategies
from schemathesis import Case, HookContext, Response, SerializationContext
from schemathesis.core.failures import Failure
from schemathesis.generation.meta import TestPhase
from schemathesis.transport.serialization import serialize_binary

# Values by the name of a parameter or property, alone or after that of its operation or component.
KNOWN: dict[str, dict[str, list[Any]]] = json.loads(os.environ["BEATKEEPER_KNOWN"])
# So many of the cases at the bounds of schemas are sent.
SHARE = float(os.environ["BEATKEEPER_SHARE"])
HOUR = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
FORMATS = {
    "cron": ["*/5 * * * *", "H 2 * * MON-FRI", "0 0 L * *", "30 4 1,15 * 5", "0 */2 * * * *"],
    # The jobs that there are plan for each hour.
    "date-time": [
        *((HOUR + timedelta(hours=hours)).isoformat() for hours in (1, 2, 30, 200)),
        "2000-01-01T00:00:00.123456+05:45",
        "2099-12-31t23:59:59z",
    ],
    "entity-tags": ["*", '"1-active-2026-11-19T06:00:00.000Z"', 'W/"a", "b"'],
    "http-url": ["https://example.com/", "http://example.com:8080/a?b=c#d", "HTTPS://192.0.2.1/%20"],
    "iana-time-zone": ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"],
    "local-date-time": ["2099-12-24T18:00", "2099-03-29 02:30:00"],
    "iso-8601-duration": ["PT1S", "PT30S", "PT1.5S", "PT1H30M", "P1D"],
}
# Codes of refusals of what is well-formed: they depend on what there is, or on how parts fit together.
UNFORESEEN = {
    "body_too_large",
    "changed_meanwhile",
    "idempotency_key_reused",
    "inconsistent",
    "never_open",
    "no_program",
    "no_such_time",
    "not_a_url",
    "not_exported",
    "not_for_workers",
    "not_planned",
    "past",
    "reserved_name",
    "secret_reference",
    "too_early",
    "too_far",
    "too_large",
    "too_precise",
    "unknown_calendar",
    "unknown_cursor",
    "unknown_job",
    "unknown_pool",
    "unknown_secret",
    "unknown_target",
    "unprintable",
}
# Of new things, as the document's examples name them.
NAMES = ("nightly report", "report-2027-03", "us-holidays")
numbers, chosen = count(1), random.Random(1)

for name, values in FORMATS.items():
    schemathesis.openapi.format(name, strategies.sampled_from(values))


@schemathesis.hook
def before_load_schema(context: HookContext, raw_schema: dict[str, Any]) -> None:
    """Write into the document what there is, so that not all requests are for what is not."""
    for operation in (operation for path in raw_schema["paths"].values() for operation in path.values()):
        for parameter in operation.get("parameters", ()):
            narrow(parameter["schema"], "parameters", operation["operationId"], parameter["name"])
    for component, schema in raw_schema["components"]["schemas"].items():
        for name, part in schema.get("properties", {}).items():
            narrow(part, "properties", component, name)


def narrow(schema: dict[str, Any], kind: str, of: str, name: str) -> None:
    values = KNOWN[kind].get(f"{of}.{name}", KNOWN[kind].get(name))
    if values is not None:
        narrowed = schema.get("items", schema)
        narrowed["enum"] = [*values, None] if "null" in narrowed.get("type", ()) else values


@schemathesis.serializer("application/x-ndjson", "application/gzip")
def serialize_log(context: SerializationContext, value: Any) -> bytes:
    """Send bytes as they are or packed. What should be of another type has no form: nothing is sent for it."""
    if not isinstance(value, str):
        return b""
    lines = serialize_binary(value)
    return gzip.compress(lines) if context.case.media_type == "application/gzip" else lines


@schemathesis.hook
def filter_case(context: HookContext, case: Case[Any]) -> bool:
    at_bounds = case.meta is not None and case.meta.phase.name == TestPhase.COVERAGE
    return not at_bounds or chosen.random() < SHARE


@schemathesis.hook
def map_case(context: HookContext, case: Case[Any]) -> Case[Any]:
    """Name each new thing anew: else most would be refused as duplicates, with nothing else of them looked at."""
    if isinstance(case.body, dict):
        case.body = renamed(case.body)
    return case


def renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: renamed(part) for name, part in value.items()}
    return f"{value}-{next(numbers)}" if value in NAMES else value


@schemathesis.hook
def filter_failure(context: HookContext, failure: Failure, case: Case[Any], response: Response) -> bool:
    """Accept the refusal of a well-formed request if nothing that it names could be foreseen."""
    if failure.code != "ST202":
        return True
    problem = json.loads(response.content)
    return not all(is_unforeseen(error, case) for error in problem.get("errors", [problem]))


def is_unforeseen(error: dict[str, Any], case: Case[Any]) -> bool:
    """Test whether no schema could say it. Inputs, and parts of a patch, must also fit the job that there is."""
    is_patch = case.operation.label == "PATCH /api/v1/jobs/{job_id}"
    of_job = r"(breaker|catch_up|retry|schedule|target)\b" if is_patch else r"input\b"
    return error["code"] in UNFORESEEN or re.match(of_job, error["field"] or "") is not None
