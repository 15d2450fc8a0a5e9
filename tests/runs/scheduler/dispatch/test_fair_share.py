"""Attacks promise 6: a queue below its weighted share gets the next free slot of its pool."""

from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest

from runs.scheduler.dispatch import fair_share as shares
from runs.scheduler.dispatch.fair_share import QueueLoad, reserve, split
from runs.scheduler.dispatch.load import MAX_IN_A_PASS


def share_out(capacity: int, queues: Iterable[QueueLoad], queues_of_pool: int) -> dict[int, int]:
    return shares.share_out(
        capacity, queues, queues_of_pool, reserve(capacity, queues_of_pool), MAX_IN_A_PASS
    )


def test_one_queue_alone_in_its_pool_may_use_every_slot() -> None:
    assert share_out(8, [QueueLoad(1)], queues_of_pool=1) == {1: 8}


def test_while_other_queues_are_idle_a_slot_is_kept_for_them() -> None:
    assert share_out(8, [QueueLoad(1)], queues_of_pool=2) == {1: 7}


def test_a_newcomer_takes_the_slot_that_was_kept_and_the_next_ones_to_be_free() -> None:
    busy = QueueLoad(1, running=7)
    assert share_out(8, [busy, QueueLoad(2)], queues_of_pool=2) == {2: 3}


def test_a_queue_above_its_share_gets_nothing_while_slots_are_short() -> None:
    busy = QueueLoad(1, running=6)
    assert 1 not in share_out(8, [busy, QueueLoad(2, running=1)], queues_of_pool=2)


def test_idle_slots_beyond_the_reserve_go_to_whoever_has_work() -> None:
    busy, content = QueueLoad(1, running=12), QueueLoad(2, running=1, ready=False)
    assert share_out(20, [busy, content], queues_of_pool=2) == {1: 5}


def test_weights_divide_the_slots() -> None:
    queues = [QueueLoad(1, weight=3), QueueLoad(2, weight=1)]
    given = share_out(40, queues, queues_of_pool=2)
    assert (given[1], given[2]) == (30, 10)


def test_without_slots_nothing_is_handed_over() -> None:
    assert share_out(0, [QueueLoad(1), QueueLoad(2)], queues_of_pool=2) == {}


def test_the_limit_of_a_queue_leaves_its_places_to_others() -> None:
    given = share_out(8, [QueueLoad(1, most=1), QueueLoad(2)], queues_of_pool=2)
    assert (given[1], given[2]) == (1, 6)
    assert share_out(8, [QueueLoad(1, most=0)], queues_of_pool=1) == {}


def test_what_a_queue_frees_quickly_is_queued_beyond_the_slots() -> None:
    assert share_out(8, [QueueLoad(1, running=8, turnover=50)], queues_of_pool=1) == {1: 50}
    assert share_out(8, [QueueLoad(1, running=8, queued=50, turnover=50)], queues_of_pool=1) == {}


def test_long_runs_leave_nothing_queued_beyond_the_slots() -> None:
    assert share_out(8, [QueueLoad(1, running=8)], queues_of_pool=1) == {}


def test_the_limit_holds_for_turnover_too() -> None:
    assert share_out(8, [QueueLoad(1, running=8, turnover=50, most=3)], queues_of_pool=1) == {1: 3}


def test_a_tenth_of_the_slots_is_kept_and_at_least_one_of_several() -> None:
    assert [reserve(slots, 2) for slots in (0, 1, 2, 3, 4, 8, 40)] == [0, 0, 1, 1, 1, 1, 4]
    assert reserve(40, 1) == 0


@pytest.mark.parametrize(("slots", "taken"), [(2, 2), (3, 3), (4, 3), (40, 36)])
def test_in_a_small_pool_a_queue_of_quick_runs_may_take_what_is_kept(slots: int, taken: int) -> None:
    assert share_out(slots, [QueueLoad(1, quick=True)], queues_of_pool=2) == {1: taken}
    assert share_out(slots, [QueueLoad(1)], queues_of_pool=2)[1] < slots


def test_no_more_runs_are_given_than_a_pass_takes_on() -> None:
    queues = [QueueLoad(tenant, weight=1 + tenant % 3) for tenant in range(30)]
    given = shares.share_out(1_000_000, queues, 30, kept=0, most=600)
    assert sum(given.values()) == 600
    assert given[2] == 3 * given[0] == 30


def test_many_queues_queue_no_more_than_a_window_beyond_the_slots() -> None:
    given = share_out(8, [QueueLoad(tenant) for tenant in range(10_000)], queues_of_pool=10_000)
    assert sum(given.values()) == 8 + 2


def test_of_more_queues_than_slots_those_go_first_that_had_less() -> None:
    queues = [QueueLoad(tenant, served=0.0 if tenant < 6 else 50.0) for tenant in range(100)]
    assert share_out(4, queues, queues_of_pool=100) == dict.fromkeys(range(6), 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(5))
def test_slot_seconds_follow_the_weights_when_queues_outnumber_slots(seed: int) -> None:
    """A small simulation: 30 queues with endless work, weights 1 to 10, runs of 1 to 5 s, 8 slots."""
    chance = Random(seed)
    weights = {tenant: 1 + tenant % 10 for tenant in range(30)}
    running: list[tuple[float, int]] = []
    queued: list[int] = []
    served = dict.fromkeys(weights, 0.0)
    had: Counter[int] = Counter()
    clock, step = 0.0, 0.1
    while clock < 3000:
        running = [entry for entry in running if entry[0] > clock]
        count, waiting = Counter(tenant for _, tenant in running), Counter(queued)
        queues = [
            QueueLoad(t, weight=w, running=count[t], queued=waiting[t], served=served[t])
            for t, w in weights.items()
        ]
        for tenant, runs in share_out(8, queues, queues_of_pool=30).items():
            queued += [tenant] * runs
        while queued and len(running) < 8:
            running.append((clock + chance.uniform(1, 5), queued.pop(0)))
        for tenant in weights:
            held = sum(1 for _, owner in running if owner == tenant)
            served[tenant] += held * step / weights[tenant]
            had[tenant] += held
        clock += step
    total, heavy = sum(had.values()), sum(weights.values())
    for tenant, weight in weights.items():
        assert had[tenant] / total == pytest.approx(weight / heavy, rel=0.15), tenant


def test_what_the_whole_pool_frees_quickly_widens_the_window_of_many_queues() -> None:
    queues = [QueueLoad(tenant, turnover=0.1) for tenant in range(1000)]
    assert sum(share_out(8, queues, queues_of_pool=1000).values()) == 8 + 2 + 100


def test_of_a_queue_above_its_share_nothing_that_it_frees_is_made_up_for() -> None:
    busy, other = QueueLoad(1, running=6, turnover=30), QueueLoad(2, running=2, turnover=10)
    assert share_out(6, [busy], queues_of_pool=1) == {1: 30}
    assert share_out(8, [busy, other], queues_of_pool=2) == {2: 12}


def test_slots_that_a_quick_queue_will_free_are_not_given_to_the_long_runs_of_another() -> None:
    quick, slow = QueueLoad(1, running=4, turnover=60), QueueLoad(2, running=4, served=-9)
    assert share_out(8, [quick, slow], queues_of_pool=2) == {1: 60}


def test_short_runs_of_many_queues_fill_places_together() -> None:
    short = [QueueLoad(tenant, per_place=16) for tenant in range(100)]
    given = share_out(8, short, queues_of_pool=100)
    assert set(given.values()) == {1, 2} and len(given) == 100
    assert sum(given.values()) == (8 - 1) * 16, "seven slots; the eighth is kept for who comes next"


def test_a_place_holds_as_many_short_runs_as_a_worker_claims_at_once() -> None:
    short = [QueueLoad(tenant, per_place=16) for tenant in range(10)]
    assert share_out(8, short, queues_of_pool=10) == dict.fromkeys(range(10), 12)
    waiting = [QueueLoad(tenant, queued=16, per_place=16) for tenant in range(10)]
    assert share_out(8, waiting, queues_of_pool=10) == {}


def test_short_runs_get_as_many_places_as_long_ones() -> None:
    given = share_out(8, [QueueLoad(1, per_place=16), QueueLoad(2)], queues_of_pool=2)
    assert given == {1: 4 * 16, 2: 4}


def test_of_a_place_no_more_is_given_than_limits_leave() -> None:
    assert share_out(8, [QueueLoad(1, per_place=16, most=20)], queues_of_pool=1) == {1: 20}
    assert shares.share_out(8, [QueueLoad(1, per_place=16)], 1, kept=0, most=40) == {1: 40}


def test_what_a_queue_has_of_its_own_workers_is_no_part_of_its_share() -> None:
    own, shared = split(QueueLoad(1, running=9, own_running=6, own_slots=10, queued=7, turnover=3.0))
    assert (own.running, own.queued, own.turnover) == (6, 6, 2.0), "four free, and two that are soon"
    assert (shared.running, shared.queued, shared.turnover) == (3, 1, 1.0)


def test_a_queue_without_workers_of_its_own_is_as_it_was() -> None:
    load = QueueLoad(1, running=0, queued=7, turnover=3.0)
    assert split(load)[1] == load


def test_what_only_its_own_workers_know_waits_before_their_slots() -> None:
    own, shared = split(QueueLoad(1, running=1, own_running=1, own_slots=1, queued=5, own_queued=4))
    assert (own.queued, shared.queued) == (4, 1)


def test_of_its_own_workers_that_have_no_slots_left_nothing_is_counted() -> None:
    own, shared = split(QueueLoad(1, running=5, own_running=5, own_slots=3, queued=2))
    assert (own.queued, shared.queued, shared.running) == (0, 2, 0)
