"""Overlap policies are rows with properties: nothing but their rows knows their names."""

import re
from pathlib import Path

import pytest

from jobs.models import COUNTING_POLICIES, COUNTING_WITHOUT_GATE, OVERLAP_POLICIES, Overlap
from tests.support.packages import PACKAGES

ROOT = Path(__file__).resolve().parents[2]

# Rows, the SDK's list of names, and the migration that writes the choices into a constraint.
NAMES_LIVE_IN = {"jobs/models/overlap.py", "scheduler_project/sdk/declarations/job_options.py"}
# A new job's policy, and what an imported django-celery-beat row gets.
CHOSEN = re.compile(r"(?<!= )Overlap\.SKIP\b|\"overlap\": \"(?:skip|allow_all)\"|default=Overlap\.SKIP")


def test_each_policy_has_its_row() -> None:
    assert list(OVERLAP_POLICIES) == Overlap.values


def test_no_code_and_no_statement_asks_for_a_policy_by_name() -> None:
    unmistakable = "|".join(name for name in Overlap.values if "_" in name)
    named = re.compile(
        rf"Overlap\.[A-Z_]+\b|\b(?:{unmistakable})\b|overlap\b\W{{0,4}}(?:=|!=|<>) ['\"]|[=!]= \"skip\""
    )
    found = []
    for folder in PACKAGES:
        for path in sorted([*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.sql")]):
            relative = path.relative_to(ROOT).as_posix()
            if relative in NAMES_LIVE_IN or "/migrations/" in relative:
                continue
            for line in path.read_text().splitlines():
                if named.search(CHOSEN.sub("", line)):
                    found.append(f"{relative}: {line.strip()}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", Overlap.values)
def test_a_policy_that_reads_unfinished_runs_has_one_way_to_do_so(name: str) -> None:
    """Either its gate is locked first, or the query of due jobs looks; a policy with both would look twice."""
    policy = OVERLAP_POLICIES[name]
    looks = [policy.needs_gate, name in COUNTING_WITHOUT_GATE]
    assert looks.count(True) == (1 if policy.counts_unfinished else 0)
    assert (name in COUNTING_POLICIES) == policy.counts_unfinished


@pytest.mark.parametrize("name", Overlap.values)
def test_who_ends_the_others_waits_for_them(name: str) -> None:
    policy = OVERLAP_POLICIES[name]
    assert policy.ends_others <= policy.waits
    assert policy.kills_others <= policy.ends_others
    assert policy.one_waits <= policy.waits
