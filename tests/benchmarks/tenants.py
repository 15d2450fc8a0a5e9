"""The rate that TENANTS queues of one pool sustain with one worker, beside plain Celery's and that of one queue.

All three execute the same body, which notes when it begins, on one worker of SLOTS children. The due times are the
same, and so is the search: the highest rate at which 95 % start within a second of their due time. Ours is tried with
MORE_TENANTS queues as well, and beside a transaction that is held open.
"""

from contextlib import ExitStack
from typing import Any

from tests.benchmarks.figures import described, percentile
from tests.benchmarks.sizes import number, slots, whole
from tests.benchmarks.stage import Stage, say
from tests.benchmarks.sustained import Search, Tried, find_sustained, say_tried
from tests.benchmarks.tenants_sides import Ours, PlainCelery, Side

KEYS = (
    "sustained_per_second",
    "started_p95_ms",
    "started_p95_at_1000_ms",
    "cpu_ms_per_run",
    "claims_empty_share",
    "wal_bytes_per_run",
    "ratio_celery",
    "ratio_one_queue",
    "ratio_more_tenants",
    "ratio_held",
)
# Below the rate that is sustained, lateness is compared at this one.
COMPARED_PER_SECOND = 1000
# Parts of the rate found that are tried beside a transaction held open, until one is sustained.
HELD_PARTS = (0.85, 0.7, 0.55, 0.4, 0.25, 0.1)


def measure(stage: Stage) -> dict[str, Any]:
    tenants, search = whole("TENANTS", 100), _search()
    jobs = whole("STORED", max(_most_of_one_trial(search), tenants), _most_of_one_trial(search))
    many, compared = _sustained(stage, Ours(stage, tenants, jobs), search, COMPARED_PER_SECOND)
    more_tenants = whole("MORE_TENANTS", 1000)
    more, _ = _sustained(stage, Ours(stage, more_tenants, max(jobs, more_tenants)), search)
    plain, _ = _sustained(stage, PlainCelery(stage, tenants), search)
    one, _ = _sustained(stage, Ours(stage, 1, jobs), search)
    held = _beside_held_transaction(stage, tenants, many.per_second)
    ratios = {
        "ratio_celery": round(many.per_second / plain.per_second, 3),
        "ratio_one_queue": round(many.per_second / one.per_second, 3),
        "ratio_more_tenants": round(more.per_second / many.per_second, 3),
        "ratio_held": round(held.per_second / many.per_second, 3) if held.sustained else 0.0,
    }
    say(
        f"{tenants} queues sustain {many.per_second} runs a second, plain Celery {plain.per_second},"
        f" one queue {one.per_second}, {more_tenants} queues {more.per_second}, beside a transaction held open"
        f" {held.per_second}: {described(ratios)}"
    )
    return {
        "sustained_per_second": many.per_second,
        "started_p95_ms": _p95_ms(many),
        "started_p95_at_1000_ms": _p95_ms(compared) if compared else None,
        **many.figures,
        **ratios,
        "celery": _summary(plain),
        "one_queue": _summary(one),
        "more_tenants": {"tenants": more_tenants, **_summary(more)},
        "held": _summary(held),
        "tenants": tenants,
        "slots": slots(),
        "stored": jobs,
    }


def _search() -> Search:
    step = number("STEP_SECONDS", 6.0, 1.0)
    return Search(whole("FIRST_PER_SECOND", 200), whole("MOST_PER_SECOND", 4_000), step, held=2 * step)


def _most_of_one_trial(search: Search) -> int:
    return int(max(search.first, search.most) * search.held)


def _sustained(stage: Stage, side: Side, search: Search, compared: int = 0) -> tuple[Tried, Tried | None]:
    """Find the rate of a side, and try it at another one if that is not above."""
    say(f"{side.name}:")
    with ExitStack() as ending:
        ending.callback(stage.delete_queues)
        ending.enter_context(side.at_work())
        found = find_sustained(side.attempt, search)
        at_compared = side.attempt(compared, search.step) if 0 < compared <= found.per_second else None
    say(f"  sustained: {found}; {described(found.figures)}")
    if at_compared:
        say(f"  at {at_compared}")
    return found, at_compared


def _beside_held_transaction(stage: Stage, tenants: int, rate: int) -> Tried:
    """Try parts of the rate while somebody holds a transaction open from before the first run to after the last."""
    seconds = number("HELD_SECONDS", 60.0, 1.0)
    side = Ours(stage, tenants, int(rate * seconds) + tenants)
    say(f"{side.name}, a transaction held open for {seconds:.0f} s:")
    with ExitStack() as ending:
        ending.callback(stage.delete_queues)
        ending.enter_context(side.at_work())
        # As in the search: whoever is asked for the first time is slow.
        side.attempt(min(rate, 200), min(5.0, seconds))
        for part in HELD_PARTS:
            with side.database.connect() as holder, holder.transaction():
                # With an id of its own, as one that writes.
                holder.execute("SELECT txid_current()")
                tried = say_tried(side.attempt(max(1, int(rate * part)), seconds))
            if tried.sustained:
                break
    return tried


def _summary(found: Tried) -> dict[str, Any]:
    return {
        "sustained_per_second": found.per_second,
        "started_p95_ms": _p95_ms(found),
        **found.figures,
    }


def _p95_ms(tried: Tried) -> float | None:
    """Return None for a rate at which runs are missing: JSON has no infinity."""
    return None if tried.missing else round(percentile(tried.started, 95.0) * 1000, 1)
