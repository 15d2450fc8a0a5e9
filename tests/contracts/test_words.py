"""One word stands for each thing in the API; an earlier one is refused with the word of today."""

from typing import Any

import pytest
from django.utils.module_loading import import_string

from jobs.models import Tenant
from tests.support.api_client import Caller, refusal
from tests.support.factories import job_spec, make_pool, make_tenant, post_job

EARLIER = {"note", "status_note", "n", "start", "end", "from", "to"}
NOW = "2100-01-01T00:00:00Z"


def names(part: Any) -> set[str]:
    """Return the names of all properties and parameters, however deep."""
    if isinstance(part, list):
        return set[str]().union(*map(names, part))
    if not isinstance(part, dict):
        return set()
    properties = part.get("properties")
    own = set(properties) if isinstance(properties, dict) else set()
    own |= {part["name"]} if "in" in part and isinstance(part.get("name"), str) else set()
    return own.union(*map(names, part.values()))


def test_no_earlier_word_names_a_property_or_a_parameter() -> None:
    generator: Any = import_string("drf_spectacular.generators.SchemaGenerator")
    found = names(generator().get_schema(request=None, public=True))
    assert {"reason", "limit", "begins_at", "ends_at", "cursor", "job_id"} <= found
    assert not found & EARLIER


@pytest.fixture
def tenant(db: None) -> Tenant:
    make_pool(slug="default")
    return make_tenant()


@pytest.mark.parametrize(
    ("address", "body", "field", "word"),
    [
        ("jobs", job_spec(schedule={"every": 60, "start": NOW}), "schedule.start", "begins_at"),
        ("jobs", job_spec(schedule={"cron": "@daily", "end": NOW}), "schedule.end", "ends_at"),
        ("schedules/preview", {"schedule": {"every": 60}, "n": 3}, "n", "limit"),
        ("pauses", {"everything": True, "note": "inventory"}, "note", "reason"),
        ("jobs/{job}/times", {"planned_at": NOW, "skip": True, "note": "holiday"}, "note", "reason"),
        ("dead-letters/f00d/dismiss", {"note": "known"}, "note", "reason"),
    ],
)
def test_an_earlier_word_is_refused_with_the_one_of_today(
    address: str, body: Any, field: str, word: str, tenant: Tenant
) -> None:
    problem = refusal(Caller(tenant).post(address.format(job=post_job(tenant).pk), body), 400, field)
    assert problem["hint"] == f"did you mean {word}?"


def test_an_earlier_parameter_is_refused_with_the_one_of_today(tenant: Tenant) -> None:
    problem = refusal(Caller(tenant).get(f"jobs/{post_job(tenant).pk}/preview", n=3), 400, "n")
    assert problem["hint"] == "did you mean limit?"
