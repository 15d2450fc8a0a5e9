"""Which runs go, in the order of their ranks: within what their queue is given, past those that may not."""

from collections import Counter
from uuid import UUID

from runs.reasons import Reason
from runs.scheduler.dispatch.selection import Candidate, Chosen, Gates, choose

ONE, OTHER = 1, 2
LIMITED = UUID(int=7)


class Behind(Gates):
    """Gates that are ours, with so many free behind each; of none, somebody else has it."""

    def __init__(self, free: int | None) -> None:
        self.limits, self.occupied = {LIMITED: free or 0}, {}
        self.busy = {LIMITED} if free is None else set()


def candidate(ctid: str, tenant: int = ONE, limited: UUID | None = None, target: str = "known") -> Candidate:
    return Candidate(ctid, tenant, 0, target, limited, None, None, None, "")


def chosen(
    *candidates: Candidate,
    reasons: dict[str, str] | None = None,
    given: int = 2,
    own: int = 0,
    free: int | None = 0,
) -> Chosen:
    own_targets = {ONE: {"theirs"}}
    counts = Counter({ONE: given, OTHER: given}), Counter({ONE: own})
    return choose(candidates, reasons or {}, *counts, own_targets, Behind(free))


def going(found: Chosen) -> list[str]:
    return [run.ctid for run in found.going]


def test_each_queue_gets_what_it_is_given() -> None:
    found = chosen(*(candidate(name) for name in "abc"), candidate("x", OTHER))
    assert going(found) == ["a", "b", "x"] and found.handed == {ONE: 2, OTHER: 1}
    assert not found.left_behind, "what it is not given this time may go next time"


def test_what_may_not_go_is_stepped_over() -> None:
    found = chosen(*(candidate(name) for name in "abc"), reasons={"a": Reason.PAUSED})
    assert going(found) == ["b", "c"]
    assert found.blocked == {"a": Reason.PAUSED} and found.left_behind == {ONE: 1}


def test_behind_a_gate_go_as_many_as_there_is_room_for() -> None:
    found = chosen(*(candidate(name, limited=LIMITED) for name in "ab"), candidate("c"), free=1)
    assert going(found) == ["a", "c"]
    assert found.blocked == {"b": Reason.CONCURRENCY} and found.left_behind == {ONE: 1}


def test_a_gate_that_somebody_else_has_blocks_nobody() -> None:
    found = chosen(candidate("a", limited=LIMITED), candidate("b"), free=None)
    assert going(found) == ["b"] and not found.blocked and found.left_behind == {ONE: 1}


def test_what_only_own_workers_know_goes_within_their_part() -> None:
    found = chosen(*(candidate(name, target="theirs") for name in "ab"), candidate("c"), own=1)
    assert going(found) == ["a", "c"] and found.to_own[ONE] == 1
    assert found.kept_to_own == {ONE} and not found.blocked
