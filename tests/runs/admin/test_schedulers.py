"""Only operators see the list of schedulers."""

import math
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs.models import Membership, Role
from runs.admin.schedulers import condition
from runs.models import SchedulerNode
from tests.support.factories import make_pool, make_tenant, make_worker, now

pytestmark = pytest.mark.django_db
LIST = "/admin/beatkeeper_runs/schedulernode/"
WELL = {"success_seconds_ago": 0.1, "longest_seconds": 0.2, "failures": 0}
ILL = {"success_seconds_ago": None, "longest_seconds": 0.0, "failures": 12}


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("olga"))
    return client


def test_schedulers_are_listed_with_what_they_hold_and_how_they_are_doing(operator: Client) -> None:
    node = SchedulerNode.objects.create(
        host="one", pid=7, job_slices=33, loops={"trigger": WELL, "dispatch": ILL}, skew_ms=1500
    )
    page = operator.get(LIST).content.decode()
    assert "one 7" in page and "33" in page and "failing" in page and "+1.5 s" in page
    page = operator.get(f"{LIST}{node.pk}/change/").content.decode()
    assert "succeeded 100 ms before; longest pass 200 ms" in page
    assert "never succeeded, failed 12 times since" in page


def test_the_page_of_a_scheduler_shows_what_its_passes_counted(operator: Client) -> None:
    counted = {"passes": 1200, "seconds": 1.5, "longest_seconds": 0.2, "counts": {"runs": 4000, "skipped": 0}}
    node = SchedulerNode.objects.create(
        host="one", pid=7, passes={"trigger": counted, "catch_up": {**counted, "counts": {}}}
    )
    page = operator.get(f"{LIST}{node.pk}/change/").content.decode()
    assert "trigger 1,200 (runs 4,000); catch_up 1,200" in page


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"loops": {"trigger": WELL}}, "running"),
        ({"loops": {"trigger": {**WELL, "success_seconds_ago": 60.0}}}, "failing"),
        ({"loops": {"trigger": ILL}, "last_seen_at": now() - timedelta(minutes=1)}, "silent"),
        ({"loops": {"trigger": ILL}, "left_at": now()}, "left"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_conditions(values: dict[str, object], wanted: str) -> None:
    assert condition(SchedulerNode(**{"last_seen_at": now(), **values}), now()) == wanted


def test_nothing_can_be_changed_by_hand(operator: Client) -> None:
    node = SchedulerNode.objects.create(host="one", pid=7)
    assert operator.get(f"{LIST}add/").status_code == 403
    assert operator.post(f"{LIST}{node.pk}/delete/").status_code == 403
    assert operator.post(f"{LIST}{node.pk}/change/", {"host": "other"}).status_code == 403


def test_members_of_tenants_know_of_no_scheduler(client: Client) -> None:
    node = SchedulerNode.objects.create(host="one", pid=7)
    user = User.objects.create_user("mona", is_staff=True)
    Membership.objects.create(user=user, tenant=make_tenant(), role=Role.ADMIN)
    client.force_login(user)
    assert client.get(LIST).status_code == 403
    # The same as for one that does not exist.
    assert client.get(f"{LIST}{node.pk}/change/").status_code in (302, 403)
    assert "schedulernode" not in client.get("/admin/").content.decode()


def test_workers_show_how_far_their_clocks_are_off(operator: Client) -> None:
    make_worker(make_pool(), skew_ms=-2_500.0)
    make_worker(make_pool())
    assert "−2.5 s" in operator.get("/admin/beatkeeper_runs/workernode/").content.decode()


@pytest.mark.parametrize(
    ("skew", "words"), [(1e300, "+ over 10 years"), (-1e16, "− over 10 years"), (math.nan, "not a number")]
)
def test_whatever_a_worker_says_of_its_clock_its_page_is_there(
    operator: Client, skew: float, words: str
) -> None:
    node = make_worker(make_pool(), skew_ms=skew)
    for page in ("", f"{node.pk}/change/"):
        answer = operator.get(f"/admin/beatkeeper_runs/workernode/{page}")
        assert answer.status_code == 200
    assert words in operator.get("/admin/beatkeeper_runs/workernode/").content.decode()
