"""What the processes of a worker know of the length of each other's runs."""

from pathlib import Path

import pytest

from scheduler_project.sdk.shared.run_lengths import ENTRIES, RunLengths


@pytest.fixture
def lengths(tmp_path: Path) -> RunLengths:
    RunLengths.create(tmp_path)
    return RunLengths(tmp_path)


def test_of_a_queue_that_was_never_timed_nothing_is_known(lengths: RunLengths) -> None:
    assert lengths.below(0.1) == {}


def test_what_one_process_notes_another_one_reads(lengths: RunLengths, tmp_path: Path) -> None:
    lengths.note(7, 0.0225)
    assert RunLengths(tmp_path).below(0.1) == {"7": 23}


def test_long_ones_are_left_out(lengths: RunLengths) -> None:
    lengths.note(7, 0.2)
    assert lengths.below(0.1) == {}


def test_one_long_run_counts_at_once_and_for_a_while(lengths: RunLengths) -> None:
    for seconds in (0.001, 5.0, 0.001):
        lengths.note(7, seconds)
    assert lengths.below(0.1) == {}
    for _ in range(60):
        lengths.note(7, 0.001)
    assert lengths.below(0.1)


def test_of_two_tenants_with_one_index_the_last_is_known(lengths: RunLengths) -> None:
    lengths.note(7, 0.001)
    lengths.note(7 + ENTRIES, 0.002)
    assert lengths.below(0.1) == {str(7 + ENTRIES): 3}
