"""Every list of the API is filtered by its FilterSet, which OpenAPI describes, and refuses what it does not know.

Nor do its pages tell how many rows others have.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db.models import AutoField
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils.module_loading import import_string
from rest_framework.generics import GenericAPIView, ListAPIView

from tests.support.api_client import Caller, refusal
from tests.support.factories import make_pool, make_tenant, post_job

PAGING = {"limit", "cursor"}


def lists(patterns: list[Any], prefix: str = "/") -> Iterator[tuple[str, type[GenericAPIView[Any]]]]:
    for pattern in patterns:
        here = prefix + str(pattern.pattern).replace("<str:", "{").replace(">", "}")
        if isinstance(pattern, URLResolver):
            yield from lists(pattern.url_patterns, here)
        elif isinstance(pattern, URLPattern):
            view: Any = getattr(pattern.callback, "cls", object)
            methods = getattr(pattern.callback, "actions", {})
            if issubclass(view, ListAPIView) or "list" in methods.values():
                yield here, view


LISTS = dict(lists(get_resolver().url_patterns))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    generator: Any = import_string("drf_spectacular.generators.SchemaGenerator")
    found: dict[str, Any] = generator().get_schema(request=None, public=True)
    return found


def filters_of(address: str) -> set[str]:
    filterset: Any = getattr(LISTS[address], "filterset_class", None)
    return set(filterset.base_filters) if filterset else set()


def test_every_page_of_the_document_is_such_a_list(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    paged = set()
    for address, operations in document["paths"].items():
        content = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema", {})
        schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        if "next" in schema.get("properties", {}):
            paged.add(address)
    assert paged == set(LISTS) and len(paged) >= 10


@pytest.mark.parametrize("address", LISTS)
def test_its_cursor_shows_no_key_that_is_counted_over_all_tenants(address: str) -> None:
    view: Any = LISTS[address]
    for name in view.newest_first:
        field = view.queryset.model._meta.get_field(name)
        assert not isinstance(getattr(field, "target_field", field), AutoField), name


@pytest.mark.parametrize("address", LISTS)
def test_the_document_names_its_filters(document: dict[str, Any], address: str) -> None:
    parameters = document["paths"][address]["get"]["parameters"]
    in_query = {parameter["name"] for parameter in parameters if parameter["in"] == "query"}
    assert in_query == filters_of(address) | PAGING


@pytest.mark.django_db
@pytest.mark.parametrize("address", LISTS)
def test_an_unknown_parameter_is_refused_by_its_name(address: str) -> None:
    make_pool(slug="default")
    tenant = make_tenant()
    job = post_job(tenant)
    path = address.removeprefix("/api/v1/").replace("{job_id}", str(job.pk)).replace("{fingerprint}", "f")
    problem = refusal(Caller(tenant).get(path, nonsense="1"), 400)
    assert (problem["field"], problem["code"]) == ("nonsense", "unknown_field")
    known = ", ".join(sorted(filters_of(address) | PAGING))
    assert problem["hint"] == f"known are {known}"
