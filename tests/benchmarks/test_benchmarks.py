"""Each benchmark runs at a small size, ends with its JSON object and leaves nothing behind. Speeds are not judged."""

import json
import os
import subprocess
import sys

import psycopg
import pytest

from tests.benchmarks.__main__ import NAMES, benchmark
from tests.benchmarks.figures import percentile, shares
from tests.benchmarks.spike import fairness_index
from tests.support.leftovers import listed_queues
from tests.support.processes import CHECKOUT

# Too small for figures: these only show that they run.
SMALL = {
    "trigger": {"STORED": "1000", "DUE": "500", "PEER_SECONDS": "1"},
    "lateness": {
        "STORED": "1000",
        "RATE": "50",
        "RATE_SECONDS": "2",
        "STEP_SECONDS": "1",
        "FIRST_PER_SECOND": "10",
        "MOST_PER_SECOND": "12",
        "SLOTS": "2",
    },
    "spike": {"STORED": "2000", "DUE": "400", "SLOTS": "200", "WORKERS": "1", "WATCH_SECONDS": "4"},
    "edit": {"STORED": "2000", "EDITS": "20", "IDLE_SECONDS": "1"},
    "failover": {"JOBS": "60", "PHASE_SECONDS": "5"},
    "throughput": {"RUNS": "200", "RUNS_10MS": "50", "RUNS_10LINES": "50", "REPEATS": "1", "SLOTS": "2"},
    "tenants": {
        "TENANTS": "4",
        "MORE_TENANTS": "6",
        "HELD_SECONDS": "1",
        "STEP_SECONDS": "1",
        "FIRST_PER_SECOND": "10",
        "MOST_PER_SECOND": "12",
        "SLOTS": "2",
    },
    "claim": {"RUNS": "200", "CALLERS": "2", "REPEATS": "1"},
    "fleet": {
        "WORKERS": "40",
        "SESSIONS": "4",
        "SECONDS": "2",
        "RUNNING": "200",
        "QUEUES": "150",
        "PASSES": "3",
    },
    "degraded": {
        "SUPPLY": "1000",
        "SLOTS": "1",
        "NORMAL_SECONDS": "2",
        "DOWN_SECONDS": "4",
        "AFTER_SECONDS": "4",
    },
    "api": {"STORED": "1000", "SECONDS": "1", "REPEATS": "1", "CLIENTS": "2"},
    "slow_clients": {"SECONDS": "3", "CLIENTS": "2"},
    "recovery": {"LEASE": "4", "TIMES": "1", "LOST_WORKERS": "1"},
}
LONGEST_SECONDS = 180


@pytest.mark.parametrize("name", SMALL)
def test_benchmark_ends_with_its_figures(name: str, broker_url: str) -> None:
    test_id = f"{os.environ['BEATKEEPER_TEST_ID']}x{name}"
    answer = _run(name, test_id)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    *words, last = answer.stdout.splitlines()
    figures = json.loads(last)
    assert figures["name"] == name
    assert set(benchmark(name).KEYS) <= figures.keys()
    assert any("fsync on" in line and "synchronous_commit on" in line for line in words)
    assert _left_behind(test_id) == []


def test_without_a_name_it_says_what_there_is() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert [line.split()[0] for line in answer.stdout.splitlines() if line.startswith("  ")] == NAMES


def test_unknown_name_is_refused_with_the_choice() -> None:
    answer = _run("speed", "none")
    assert answer.returncode == 2
    assert "There is no benchmark speed." in answer.stdout
    assert "trigger" in answer.stdout


def test_bad_size_is_refused_by_its_name() -> None:
    answer = _run("trigger", "none", DUE="many")
    assert answer.returncode == 1
    assert "DUE='many' is of no use here: a number from 1 on, such as 100000" in answer.stdout


def test_percentile_is_a_measured_value() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50.0) == 2.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 99.0) == 4.0
    assert percentile([1.0], 99.9) == 1.0


def test_shares_are_of_slot_seconds_while_a_tenant_has_work() -> None:
    # Tenant 1 had two of three slots until it ran out of work; what others had afterwards is not held against it.
    spans = [(1, 0.0, 10.0), (1, 0.0, 10.0), (2, 0.0, 10.0), (2, 10.0, 20.0), (2, 10.0, 20.0)]
    found = shares(spans, {1: 10.0, 2: 20.0}, {1: 2, 2: 1}, begin=0.0)
    assert found == {1: 1.0, 2: 1.0}


def test_share_of_a_starved_tenant_is_seen() -> None:
    found = shares([(1, 0.0, 9.0), (2, 9.0, 10.0)], {1: 10.0, 2: 10.0}, {1: 1, 2: 1}, begin=0.0)
    assert found == {1: 1.8, 2: 0.2}
    assert fairness_index([1.8, 0.2]) < fairness_index([1.0, 1.0]) == 1.0


def _run(name: str, test_id: str, **sizes: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, **SMALL.get(name, {}), **sizes, "BEATKEEPER_TEST_ID": test_id}
    # The settings of the tests are of this process.
    env.pop("BEATKEEPER_QUEUE_PREFIX", None)
    return subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", name],
        cwd=CHECKOUT,
        env=env,
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
    )


def _left_behind(test_id: str) -> list[str]:
    with psycopg.connect(os.environ["DATABASE_URL"]) as session:
        databases = [name for (name,) in session.execute("SELECT datname FROM pg_database").fetchall()]
    return [name for name in [*databases, *listed_queues()] if test_id in name]
