"""What cuts a process off does so in both directions, for new connections as well, and is undone whatever happens."""

import os
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.support.network import Forwarder, in_group, may_filter, own_group, packets_dropped

ASK = "import psycopg, sys; psycopg.connect(sys.argv[1], connect_timeout=2).execute('SELECT 1')"

pytestmark = pytest.mark.servers


def rules() -> str:
    listed = subprocess.run(["iptables", "-S"], capture_output=True, text=True, check=True)
    return "\n".join(line for line in listed.stdout.splitlines() if str(own_group()) in line)


def answers(url: str) -> bool:
    command = in_group(own_group(), sys.executable, "-c", ASK, url)
    return subprocess.run(command, capture_output=True, timeout=20).returncode == 0


@pytest.mark.skipif(not may_filter(), reason="needs root, iptables and CAP_NET_ADMIN")
def test_packets_of_one_group_are_dropped_and_nobody_elses() -> None:
    url = os.environ["DATABASE_URL"]
    assert answers(url)
    with pytest.raises(KeyError), packets_dropped(own_group(), urlsplit(url).port or 5432, []):
        assert not answers(url)
        psycopg.connect(url).close()
        raise KeyError("the test failed")
    assert rules() == ""
    assert answers(url)


def test_a_forwarder_swallows_without_a_word_and_lets_through_afterwards() -> None:
    forwarder = Forwarder(os.environ["DATABASE_URL"])
    with psycopg.connect(forwarder.url, autocommit=True, tcp_user_timeout=1000) as session:
        assert _one(session)
        with forwarder.swallowing():
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(forwarder.url, connect_timeout=2)
            assert not session.closed
        assert _one(session)
    forwarder.close()


def _one(session: psycopg.Connection[Any]) -> bool:
    return session.execute("SELECT 1").fetchall() == [(1,)]
