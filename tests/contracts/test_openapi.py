"""The OpenAPI document is valid, complete, and says what the API does."""

from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils.module_loading import import_string

from jobs.models import JobStatus
from jobs.spec.fields import FIELDS
from runs.states import FinalState, LiveState
from tests.support.api_client import Caller
from tests.support.factories import job_spec, make_finished_run, make_pool, make_tenant, post_job


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    generator: Any = import_string("drf_spectacular.generators.SchemaGenerator")
    found: dict[str, Any] = generator().get_schema(request=None, public=True)
    return found


def test_it_is_valid_and_without_a_warning(tmp_path: Any) -> None:
    call_command("spectacular", validate=True, fail_on_warn=True, file=str(tmp_path / "openapi.yaml"))


def paths(patterns: list[Any], prefix: str = "/") -> list[str]:
    found = []
    for pattern in patterns:
        here = prefix + str(pattern.pattern).replace("<str:", "{").replace(">", "}")
        if isinstance(pattern, URLResolver):
            found += paths(pattern.url_patterns, here)
        elif isinstance(pattern, URLPattern):
            found.append(here)
    return found


def test_every_address_of_the_api_is_described(document: dict[str, Any]) -> None:
    own = [path for path in paths(get_resolver().url_patterns) if path.startswith("/api/v1/")]
    served = {path for path in own if path.rpartition("/")[2] not in ("", "schema", "docs", "^.*$")}
    assert served == set(document["paths"])


def test_every_operation_has_a_name_a_summary_and_its_refusals(document: dict[str, Any]) -> None:
    operations = [op for path in document["paths"].values() for op in path.values()]
    names = [op["operationId"] for op in operations]
    assert len(set(names)) == len(names)
    for op in operations:
        assert op["summary"] and op["tags"] and {"401", "403"} <= set(op["responses"])
        assert "application/problem+json" in op["responses"]["401"]["content"]


def test_all_references_lead_somewhere(document: dict[str, Any]) -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if "$ref" in value else []
            return own + [ref for item in value.values() for ref in references(item)]
        return [ref for item in value for ref in references(item)] if isinstance(value, list) else []

    schemas = document["components"]["schemas"]
    assert {ref.rpartition("/")[2] for ref in references(document)} <= set(schemas)


def test_its_words_are_those_of_the_code(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert set(schemas["JobSpec"]["properties"]) == set(FIELDS)
    assert schemas["Job"]["properties"]["status"]["enum"] == JobStatus.values
    assert set(schemas["Run"]["properties"]["state"]["enum"]) == {*LiveState.values, *FinalState.values}


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
