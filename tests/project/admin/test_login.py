"""Attempts to log in are limited: passwords can be guessed."""

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from jobs.access.request_limits import LOGINS_OF_ADDRESS, LOGINS_OF_USER
from jobs.models import Allowance
from tests.support.minute import Minute

pytestmark = pytest.mark.django_db
RIGHT = "the right one"


@pytest.fixture(autouse=True)
def _olga(minute: Minute) -> None:
    get_user_model().objects.create_superuser("olga", password=RIGHT)


def log_in(username: str = "olga", password: str = RIGHT, address: str = "203.0.113.9") -> Any:
    return Client(REMOTE_ADDR=address).post("/admin/login/", {"username": username, "password": password})


def test_a_person_logs_in() -> None:
    assert log_in().status_code == 302
    assert b"correct" in log_in(password="wrong").content


def test_after_too_many_attempts_no_password_is_looked_at_for_a_minute(minute: Minute) -> None:
    minute.pass_to(15)
    for _ in range(LOGINS_OF_USER):
        assert b"Please enter the correct" in log_in(password="guessed").content
    answer = log_in()
    assert answer.status_code == 200 and b"try again in 45 s." in answer.content
    assert b"10 attempts to log in with this name came from this address in this minute" in answer.content
    minute.pass_to(60)
    assert log_in().status_code == 302


def test_other_people_and_other_addresses_can_log_in_meanwhile() -> None:
    get_user_model().objects.create_superuser("piotr", password=RIGHT)
    for _ in range(LOGINS_OF_USER + 5):
        log_in(password="guessed")
    assert log_in().status_code == 200
    assert log_in("piotr").status_code == 302
    assert log_in(address="198.51.100.4").status_code == 302


def test_one_address_tries_few_names() -> None:
    for number in range(LOGINS_OF_ADDRESS):
        log_in(f"user-{number}", "guessed")
    answer = log_in()
    assert answer.status_code == 200 and b"30 attempts to log in came from this address" in answer.content


def test_a_form_that_lacks_something_is_no_attempt() -> None:
    for _ in range(LOGINS_OF_ADDRESS + 5):
        log_in(password="")
    assert log_in().status_code == 302


def test_names_that_people_type_are_not_stored() -> None:
    """Some type their password there."""
    log_in("hunter2", "guessed")
    assert not Allowance.objects.filter(subject__contains="hunter2").exists()
    assert Allowance.objects.count() == 2
