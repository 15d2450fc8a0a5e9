"""The side bar of the admin shows each user what they may see."""

import pytest
from django.contrib.auth.models import User
from django.test import RequestFactory

from jobs.models import Role
from scheduler_project.admin.navigation import navigation
from tests.support.factories import make_tenant, make_user

pytestmark = pytest.mark.django_db


def titles(user: User) -> list[str]:
    request = RequestFactory().get("/admin/")
    request.user = user
    return [item["title"] for group in navigation(request) for item in group["items"]]


def test_users_and_schedulers_are_for_operators_of_the_platform() -> None:
    member = make_user(make_tenant(), Role.ADMIN, is_staff=True)
    operator = User.objects.create_superuser("olga", password="x")
    assert set(titles(operator)) - set(titles(member)) == {"Schedulers", "Users"}
    assert set(titles(member)) <= set(titles(operator))


def test_who_belongs_to_no_tenant_sees_the_dashboard_alone() -> None:
    assert titles(User.objects.create_user("nina", is_staff=True)) == ["Dashboard"]
