"""Policies as a code base writes them; what the platform makes of them is in tests/jobs."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from jobs.spec.breaker import read_breaker
from jobs.spec.retry import read_retry
from scheduler_project.sdk import Beatkeeper
from scheduler_project.sdk.declarations.checks import InvalidDeclaration
from scheduler_project.sdk.outcomes import PermanentError


class Declined(Exception):
    """As a code base has them."""


@pytest.fixture
def keeper() -> Iterator[Beatkeeper]:
    yield Beatkeeper(Celery("policies", broker="memory://", set_as_current=False), tenant="acme")


def declared(
    keeper: Beatkeeper, task_options: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    @keeper.job(every=60, **options)
    @keeper.app.task(name="shop.settle", shared=False, **(task_options or {}))
    def settle() -> None:
        """Do nothing."""

    [declaration] = keeper.declarations()
    return declaration


def test_a_policy_and_a_breaker_are_declared_as_the_platform_reads_them(keeper: Beatkeeper) -> None:
    found = declared(
        keeper,
        retry={
            "max_attempts": 9,
            "backoff": "fixed",
            "base": "PT5S",
            "cap": 60,
            "jitter": "none",
            "max_losses": 2,
            "permanent": [Declined, ValueError, "HTTP 410"],
        },
        breaker={"failures": 5, "cooldown": "PT5M"},
    )
    names = [f"{__name__}.Declined", "ValueError", "HTTP 410"]
    assert found["retry"]["permanent"] == names
    assert read_retry(found["retry"])["permanent"] == names
    assert read_breaker(found["breaker"]) == {"failures": 5, "cooldown": 300.0}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retries": 3, "retry": {"max_attempts": 4}}, "not both"),
        ({"retry": {"attempts": 4}}, "max_attempts"),
        ({"retry": {"backoff": "quadratic"}}, "exponential, linear, fixed, immediate"),
        ({"retry": {"jitter": "half"}}, "full, none"),
        ({"retry": {"base": "5 s"}}, "ISO 8601"),
        ({"retry": {"permanent": "ValueError"}}, "no list of exceptions or names"),
        ({"retry": {"permanent": ValueError}}, "no list of exceptions or names"),
        ({"breaker": {"cooldown": 5}}, "failures"),
        ({"breaker": {"failures": 5, "window": 5}}, "failures, cooldown"),
    ],
)
def test_a_mistake_is_said_where_it_is_made(keeper: Beatkeeper, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidDeclaration, match=said):
        declared(keeper, **options)


@pytest.mark.parametrize(
    ("task", "policy"),
    [
        ({}, None),
        ({"max_retries": 3}, None),
        ({"max_retries": 7}, {"max_attempts": 8}),
        ({"max_retries": 0}, {"max_attempts": 1}),
        ({"max_retries": None}, {"max_attempts": 100}),
        ({"autoretry_for": (KeyError,), "retry_kwargs": {"max_retries": 5}}, {"max_attempts": 6}),
        (
            {"autoretry_for": (KeyError,), "retry_backoff": True},
            {"base": 1.0, "cap": 600.0, "jitter": "full"},
        ),
        (
            {
                "autoretry_for": (KeyError,),
                "retry_backoff": 5,
                "retry_backoff_max": 60,
                "retry_jitter": False,
            },
            {"base": 5.0, "cap": 60.0, "jitter": "none"},
        ),
    ],
)
def test_a_job_without_a_policy_has_its_tasks(
    keeper: Beatkeeper, task: dict[str, Any], policy: dict[str, Any] | None
) -> None:
    found = declared(keeper, task).get("retry")
    assert found == policy
    assert policy is None or read_retry(found)["max_attempts"] >= 1


def test_a_policy_of_the_job_goes_before_the_tasks(keeper: Beatkeeper) -> None:
    assert declared(keeper, {"max_retries": 7}, retries=1)["retry"] == {"max_attempts": 2}


def test_errors_of_ours_have_names_that_a_policy_may_use() -> None:
    assert read_retry({"transient": [PermanentError.__name__]})["transient"] == ["PermanentError"]
