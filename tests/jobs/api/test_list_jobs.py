"""Test GET /api/v1/jobs."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.models import Job
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_tenant, post_job

pytestmark = pytest.mark.django_db


def names(response: Any) -> list[str]:
    assert response.status_code == 200, response.content
    return [job["name"] for job in response.json()["results"]]


def make_jobs(caller: Caller, number: int) -> list[str]:
    return [post_job(caller.tenant, name=f"job {n:02}").name for n in range(number)]


def test_newest_come_first(caller: Caller) -> None:
    made = make_jobs(caller, 3)
    body = caller.get("jobs").json()
    assert [job["name"] for job in body["results"]] == made[::-1]
    assert body["next"] is None and body["previous"] is None


def test_following_next_shows_each_job_once_and_previous_leads_back(caller: Caller) -> None:
    made = make_jobs(caller, 7)
    Job.objects.update(created_at=Job.objects.earliest("created_at").created_at)  # the id decides
    pages, url = [], "jobs?limit=3"
    while url:
        body = caller.get(url).json()
        pages.append([job["name"] for job in body["results"]])
        url, back = body["next"], body["previous"]
    assert [len(page) for page in pages] == [3, 3, 1]
    assert sorted(sum(pages, [])) == made
    middle = caller.get(back)
    assert names(middle) == pages[1]
    first = caller.get(middle.json()["previous"])
    assert names(first) == pages[0] and first.json()["previous"] is None
    assert names(caller.get(first.json()["next"])) == pages[1]


def test_the_cursor_of_a_page_stands_beside_its_link(caller: Caller) -> None:
    make_jobs(caller, 3)
    first = caller.get("jobs", limit=2).json()
    assert first["next"].endswith(f"cursor={first['next_cursor']}") and first["previous_cursor"] is None
    second = caller.get("jobs", limit=2, cursor=first["next_cursor"])
    assert names(second) == ["job 00"] and second.json()["next_cursor"] is None
    assert names(caller.get("jobs", limit=2, cursor=second.json()["previous_cursor"])) == ["job 02", "job 01"]


def test_a_job_made_meanwhile_moves_no_page(caller: Caller) -> None:
    make_jobs(caller, 4)
    first = caller.get("jobs?limit=2").json()
    post_job(caller.tenant, name="newer")
    assert names(caller.get(first["next"])) == ["job 01", "job 00"]


def test_filters_narrow_and_stay_in_the_links(caller: Caller) -> None:
    for n in range(3):
        post_job(caller.tenant, name=f"pay {n}", tags={"team": "payments", "tier": str(n)})
    post_job(caller.tenant, name="other", tags={"team": "search"})
    assert len(names(caller.get("jobs", tag="team:payments"))) == 3
    assert len(names(caller.get("jobs", tag="tier"))) == 3
    assert len(names(caller.get("jobs", tag="team"))) == 4
    assert names(caller.get("jobs?tag=team:payments&tag=tier:1")) == ["pay 1"]
    assert names(caller.get("jobs", q="OTHER")) == ["other"]
    first = caller.get("jobs", tag="team:payments", limit=2).json()
    assert names(caller.get(first["next"])) == ["pay 0"]


def test_status_and_pool_filter(caller: Caller) -> None:
    post_job(caller.tenant, name="a")
    held = post_job(caller.tenant, name="b", pool="second")
    caller.post(f"jobs/{held.pk}/pause")
    assert names(caller.get("jobs", status="paused")) == ["b"]
    assert names(caller.get("jobs", pool="default")) == ["a"]
    assert names(caller.get("jobs", pool="nowhere")) == []


def test_only_jobs_of_the_own_tenant_and_no_deleted_ones(caller: Caller) -> None:
    post_job(make_tenant(), name="theirs")
    caller.delete(f"jobs/{post_job(caller.tenant, name='gone').pk}")
    post_job(caller.tenant, name="ours")
    assert names(caller.get("jobs")) == ["ours"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"status": "asleep"}, "status"),
        ({"tag": "team=payments"}, "tag"),
        ({"tag": ":payments"}, "tag"),
        ({"limit": "0"}, "limit"),
        ({"limit": "201"}, "limit"),
        ({"limit": "ten"}, "limit"),
        ({"cursor": "nonsense"}, "cursor"),
        ({"cursor": "WyJvbGRlciIsIngiLCJ5Il0"}, "cursor"),
        ({"cursor": "W1tb" * 400}, "cursor"),
        ({"tag": ["a:\x00", "a:b"]}, "tag"),
        ({"statu": "active"}, "statu"),
        ({"q": "a\x00b"}, "q"),
    ],
)
def test_a_bad_filter_is_refused_by_its_name(caller: Caller, query: dict[str, Any], field: str) -> None:
    refusal(caller.get("jobs", **query), 400, field)


def test_a_long_list_costs_no_more_queries_than_a_short_one(caller: Caller) -> None:
    make_jobs(caller, 2)
    caller.get("jobs")  # notes the use of the key
    with CaptureQueriesContext(connection) as short:
        caller.get("jobs")
    for _ in range(10):
        post_job(caller.tenant)
    with CaptureQueriesContext(connection) as long:
        caller.get("jobs")
    assert len(long) == len(short)
    assert not any("COUNT(" in query["sql"] for query in long.captured_queries)
