"""The list of firings in the admin, for operators."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.test import Client, RequestFactory

from jobs.models import Role
from runs.models import CeleryFiring
from runs.states import FiringState
from scheduler_project.admin.navigation import navigation
from tests.support.factories import make_tenant, make_user, now

pytestmark = pytest.mark.django_db
LIST = "/admin/beatkeeper_runs/celeryfiring/"


def make_firing(**fields: Any) -> CeleryFiring:
    given = {
        "task_id": 7,
        "name": "each hour",
        "task": "shop.settle",
        "planned_at": now(),
        "message_id": uuid4(),
        "scheduler": "one 77",
        "state": FiringState.SENT,
    }
    return CeleryFiring.objects.create(**{**given, **fields})


def test_firings_are_listed_with_what_became_of_them(staff: Client) -> None:
    made = make_firing(sent_at=now(), missed_since=now() - timedelta(hours=3))
    make_firing(
        name="other", planned_at=now() - timedelta(days=1), state="refused", error="its args are not JSON"
    )
    page = staff.get(LIST).content.decode()
    for word in ("each hour", "shop.settle", "one 77", "refused", "its args are not JSON"):
        assert word in page
    page = staff.get(f"{LIST}{made.pk}/change/").content.decode()
    assert str(made.message_id) in page
    page = staff.get(LIST, {"q": "other"}).content.decode()
    assert "each hour" not in page and "not JSON" in page


def test_nothing_can_be_changed_by_hand(staff: Client) -> None:
    made = make_firing()
    assert staff.get(f"{LIST}add/").status_code == 403
    assert staff.post(f"{LIST}{made.pk}/delete/").status_code == 403


def test_members_of_tenants_know_of_no_firing(client: Client) -> None:
    client.force_login(make_user(make_tenant(), Role.ADMIN, is_staff=True))
    assert client.get(LIST).status_code == 403
    assert client.get(f"{LIST}{make_firing().pk}/change/").status_code in (302, 403)


def test_the_side_bar_shows_them_where_there_are_any(settings: LazySettings) -> None:
    request = RequestFactory().get("/admin/")
    request.user = User.objects.create_superuser("olga")

    def shown() -> bool:
        return any("firings" in item["title"] for group in navigation(request) for item in group["items"])

    assert not shown()
    settings.CELERY_BEAT_URL = "postgresql://127.0.0.1/theirs"
    assert shown()
