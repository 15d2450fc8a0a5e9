"""The OpenAPI document is valid, complete, and says what the API does."""

import json
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import jsonschema
import pytest
from django.core.management import call_command
from django.test import Client
from django.utils.module_loading import import_string

from jobs.models import JobStatus
from jobs.spec.fields import FIELDS
from runs.states import FinalState, LiveState
from tests.contracts.addresses import api_addresses
from tests.support.api_client import Caller
from tests.support.factories import job_spec, make_finished_run, make_pool, make_tenant, post_job


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    generator: Any = import_string("drf_spectacular.generators.SchemaGenerator")
    found: dict[str, Any] = generator().get_schema(request=None, public=True)
    return found


def test_it_is_valid_and_without_a_warning(tmp_path: Any) -> None:
    call_command("spectacular", validate=True, fail_on_warn=True, file=str(tmp_path / "openapi.yaml"))


def test_every_address_of_the_api_is_described(document: dict[str, Any]) -> None:
    assert set(api_addresses()) == set(document["paths"])


def test_every_operation_has_a_name_a_summary_and_its_refusals(document: dict[str, Any]) -> None:
    operations = [op for path in document["paths"].values() for op in path.values()]
    names = [op["operationId"] for op in operations]
    assert len(set(names)) == len(names)
    for op in operations:
        assert op["summary"] and op["tags"] and {"401", "403"} <= set(op["responses"])


def test_all_references_lead_somewhere(document: dict[str, Any]) -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if "$ref" in value else []
            return own + [ref for item in value.values() for ref in references(item)]
        return [ref for item in value for ref in references(item)] if isinstance(value, list) else []

    components = document["components"]
    there = {f"#/components/{kind}/{name}" for kind in components for name in components[kind]}
    assert set(references(document)) <= there


def test_its_words_are_those_of_the_code(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert set(schemas["JobSpec"]["properties"]) == set(FIELDS)
    assert schemas["Job"]["properties"]["status"]["enum"] == JobStatus.values
    assert set(schemas["Run"]["properties"]["state"]["enum"]) == {*LiveState.values, *FinalState.values}


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(method, op) for path in document["paths"].values() for method, op in path.items()]


def bodies(document: dict[str, Any], *, answers: bool) -> list[dict[str, Any]]:
    found = []
    for _, op in operations(document):
        whole = op["responses"].values() if answers else [op.get("requestBody", {})]
        found += [media for body in whole for media in body.get("content", {}).values()]
    return found


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield each schema within a schema."""
    if isinstance(schema, dict):
        yield schema
    below = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    for part in below:
        yield from parts(part)


def reachable(document: dict[str, Any], *, answers: bool) -> dict[str, Any]:
    """Return the components of the bodies, by name, but those of workers, which no client is generated for."""
    schemas, found = document["components"]["schemas"], dict[str, Any]()
    todo = [media["schema"] for media in bodies(document, answers=answers)]
    while todo:
        names = [part["$ref"].rpartition("/")[2] for part in parts(todo.pop()) if "$ref" in part]
        new = {name: schemas[name] for name in names if name not in found and "Worker" not in name}
        found.update(new)
        todo += new.values()
    return found


def test_every_object_of_a_body_is_a_component(document: dict[str, Any]) -> None:
    for media in [*bodies(document, answers=False), *bodies(document, answers=True)]:
        assert not [part for part in parts(media["schema"]) if "properties" in part], media
    for name, schema in document["components"]["schemas"].items():
        inner = [
            part for part in parts(schema) if part is not schema and isinstance(part.get("properties"), dict)
        ]
        assert inner == [], name
    expected = {"CronSchedule", "IntervalSchedule", "OneTimeSchedule", "ScheduleCalendar", "RetryPolicy"}
    assert expected <= set(document["components"]["schemas"])


def test_requests_have_no_defaults_and_no_unknown_fields(document: dict[str, Any]) -> None:
    """A generated client sends the defaults that it knows, so that a change of one field would reset the others."""
    for name, schema in reachable(document, answers=False).items():
        assert not [part for part in parts(schema) if "default" in part], name
        assert "properties" not in schema or "additionalProperties" in schema, name


def test_answers_require_what_they_always_have(document: dict[str, Any]) -> None:
    lacking = {
        name: set(schema["properties"]) - set(schema.get("required", ()))
        for name, schema in reachable(document, answers=True).items()
        if "properties" in schema
    }
    assert lacking["Job"] == {"warnings", "estimated_start_at"}
    assert lacking["Run"] == set()
    assert lacking["CronScheduleAnswer"] == {"begins_at", "ends_at", "calendar", "jitter"}


def test_null_is_a_type(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert not [part for part in parts(document["components"]["schemas"]) if part.get("nullable") is True]


def test_every_body_of_json_has_a_valid_example(document: dict[str, Any]) -> None:
    for media in [*bodies(document, answers=False), *bodies(document, answers=True)]:
        if media["schema"].get("type") != "string":
            schema = {**media["schema"], "components": document["components"]}
            jsonschema.Draft202012Validator(schema).validate(media["example"])


def test_refusals_are_described_once_for_all_operations(document: dict[str, Any]) -> None:
    for method, op in operations(document):
        refused = {int(status): found for status, found in op["responses"].items() if status >= "400"}
        of_body = {413, 415} if "requestBody" in op else set()
        assert {400, 401, 403, 405, 414, 429, 503} | of_body <= set(refused), (method, op["operationId"])
        assert all(found["$ref"].startswith("#/components/responses/") for found in refused.values())
    responses = document["components"]["responses"]
    assert all("X-Request-Id" in found["headers"] for found in responses.values())
    assert "WWW-Authenticate" in responses["Refused401"]["headers"]
    for name in ("Refused429", "Refused503"):
        assert "Retry-After" in responses[name]["headers"]


def test_answers_to_requests_that_are_limited_say_what_is_left(document: dict[str, Any]) -> None:
    limits = {"RateLimit-Policy", "RateLimit"}
    for method, op in operations(document):
        [answered, *_] = [found for status, found in op["responses"].items() if status < "300"]
        limited = op["tags"] != ["worker"] and op["operationId"] != "complete_run"
        assert limits & set(answered["headers"]) == (limits if limited else set()), (
            method,
            op["operationId"],
        )
    assert limits < set(document["components"]["responses"]["Refused429"]["headers"])


def test_what_is_done_once_says_when_it_was_replayed(document: dict[str, Any]) -> None:
    created = document["paths"]["/api/v1/jobs"]["post"]["responses"]["201"]
    assert set(created["headers"]) >= {"X-Request-Id", "Location", "Idempotency-Replayed"}
    assert set(document["paths"]["/api/v1/secrets/{name}"]["put"]["responses"]) >= {"200", "201"}


def test_a_callback_has_a_scheme_of_its_own(document: dict[str, Any]) -> None:
    schemes = document["components"]["securitySchemes"]
    asked = {
        name: op["operationId"] for _, op in operations(document) for one in op["security"] for name in one
    }
    assert set(asked) == set(schemes) == {"key", "callback"} and asked["callback"] == "complete_run"


@pytest.mark.django_db
def test_a_length_of_time_with_a_fraction_is_as_described(document: dict[str, Any]) -> None:
    make_pool(slug="default")
    schedule = Caller(make_tenant()).post("jobs", job_spec(schedule={"every": 1.5})).json()["schedule"]
    described = document["components"]["schemas"]["IntervalScheduleAnswer"]["properties"]["every"]
    assert schedule["every"] == "PT1.5S" and re.search(described["pattern"], schedule["every"])
    assert described.get("format") != "duration"


@pytest.mark.django_db
def test_answers_hold_the_fields_the_document_names(document: dict[str, Any]) -> None:
    caller = Caller(make_tenant())
    make_pool(slug="default")
    schemas = document["components"]["schemas"]
    created = caller.post("jobs", job_spec()).json()
    assert set(created) == set(schemas["Job"]["properties"])
    run = make_finished_run(post_job(caller.tenant))
    assert set(caller.get(f"runs/{run.pk}").json()) == set(schemas["Run"]["properties"])
    problem = caller.get("jobs/nothing").json()
    assert set(problem) <= set(schemas["Problem"]["properties"])


@pytest.mark.django_db
def test_it_is_served_without_a_key() -> None:
    response = Client().get("/api/v1/schema")
    assert response.status_code == 200 and b"openapi: 3" in response.content


@pytest.mark.parametrize("query", ["", "?format=json", "?version=2%0d%0a&lang=de"])
def test_it_is_made_once_however_it_is_asked_for(query: str) -> None:
    first = Client().get(f"/api/v1/schema{query}")
    with patch("drf_spectacular.generators.SchemaGenerator.get_schema") as made:
        again = Client().get(f"/api/v1/schema{query}", headers={"Host": "localhost"})
    assert not made.called
    assert again.content.replace(b"http://localhost", b"http://testserver", 1) == first.content


@pytest.mark.parametrize(
    ("query", "accept"),
    [
        ("", "application/json"),
        ("", "text/html, application/vnd.oai.openapi+json;q=0.9"),
        ("?format=json", "*/*"),
    ],
)
def test_it_is_served_in_json_too(query: str, accept: str) -> None:
    response = Client().get(f"/api/v1/schema{query}", headers={"Accept": accept})
    assert json.loads(response.content)["servers"] == [{"url": "http://testserver"}]
    assert "json" in response["Content-Type"]
