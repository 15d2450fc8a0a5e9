"""A refusal outside of our views names what is wrong, too."""

import logging

import pytest
from django.test import Client

from tests.support.api_client import refusal


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/admin/", "/health"])
def test_a_host_that_is_not_served_is_named_without_a_traceback(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        problem = refusal(Client().get(path, headers={"Host": "elsewhere.example"}), 400, "Host")
    assert problem["code"] == "unknown_host" and "BEATKEEPER_ALLOWED_HOSTS" in problem["hint"]
    (record,) = [record for record in caplog.records if "Host" in record.name]
    assert "elsewhere.example" in record.getMessage() and record.exc_info is None
