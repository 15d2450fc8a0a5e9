"""Read the address that the server binds to."""

import argparse

import pytest

from scheduler_project.management.commands.serve import address


@pytest.mark.parametrize(
    ("text", "host"),
    [("0.0.0.0:8000", "0.0.0.0"), ("[::1]:8000", "::1"), (":8000", "127.0.0.1"), ("8000", "127.0.0.1")],  # noqa: S104 - nothing is bound
)
def test_an_address_is_read(text: str, host: str) -> None:
    assert address(text) == (host, 8000)


@pytest.mark.parametrize("text", ["localhost", "localhost:", "localhost:http", "localhost:65536", "[::1]"])
def test_an_address_without_a_port_is_refused_in_words(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="has no port at its end"):
        address(text)
