"""Attack promise 3 where it is decided.

Whatever suspensions, outages and changes there are, each planned time has one outcome.
"""

import json
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.models import Effect, SuspensionKind
from jobs.suspensions.rules import SuspensionRow, SuspensionSet
from runs.reasons import Reason
from runs.scheduler.trigger.decision import TriggerDecision, decide, note_all, settle_missed
from runs.scheduler.trigger.due_job import DueJob
from runs.scheduler.trigger.missed import ALL, OPEN, SETTLED, WORKING, Span
from runs.scheduler.trigger.overrides import ChangedTime, next_clock

START = datetime(2026, 11, 18, 12, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
GRACE = MINUTE


def make_due_job(schedule: Any = None, *, due_at: datetime = START, **fields: Any) -> DueJob:
    catch_up = {"policy": "last", "window": 86_400, **fields.pop("catch_up", {})}
    values = {
        "due_at": due_at,
        "id": UUID(int=7),
        "tenant_id": 1,
        "pool_id": 1,
        "version": 1,
        "priority": 500,
        "status": "active",
        "schedule": json.dumps({"cron": "* * * * *"} if schedule is None else schedule),
        "calendar": None,
        "anchor_at": START - MINUTE,
        "overlap": "allow_all",
        "catch_up_text": json.dumps(catch_up),
        "target_key": "tests.succeeds",
        "gated": False,
        "busy": False,
    }
    return DueJob(**{**values, **fields})


def make_suspension(begins_at: datetime, over_at: datetime | None = None, **fields: Any) -> SuspensionRow:
    values = {
        "id": 1,
        "kind": SuspensionKind.BLACKOUT.value,
        "effect": Effect.SKIP.value,
        "tenant_id": None,
        "pool_id": None,
        "job_id": None,
        "tag_name": "",
        "tag_value": "",
        "reason": "",
    }
    return SuspensionRow(**{**values, **fields, "begins_at": begins_at, "over_at": over_at})


def make_change(planned_at: datetime, moved_to: datetime | None = None, **fields: Any) -> ChangedTime:
    return ChangedTime(
        **{"id": 1, "created_by": "ann", "reason": "", "done": False, **fields},
        planned_at=planned_at,
        moved_to=moved_to,
    )


def minutes(*numbers: float) -> list[datetime]:
    return [START + number * MINUTE for number in numbers]


def spans_of(found: TriggerDecision) -> list[tuple[float, float, str, str]]:
    """Spans in minutes."""
    return [
        ((span.begins_at - START) / MINUTE, (span.ends_at - START) / MINUTE, span.reason, span.state)
        for span in found.spans
    ]


class TestSuspensions:
    def test_a_fresh_time_under_a_suspension_waits_in_an_open_span(self) -> None:
        suspensions = SuspensionSet((make_suspension(START, reason="audit"),))
        found = decide(make_due_job(), START + SECOND, GRACE, suspensions)
        assert (found.times, found.next_at) == ([], START + MINUTE)
        (span,) = found.spans
        assert (span.state, span.suspension_id, span.cursor) == (OPEN, 1, START + MINUTE)
        assert span.begins_at == START < span.ends_at < START + MINUTE
        assert span.reason == "blackout: audit"

    def test_times_before_and_after_a_suspension_get_their_runs(self) -> None:
        suspensions = SuspensionSet((make_suspension(START + 10 * SECOND, START + 30 * SECOND),))
        job = make_due_job({"cron": "*/10 * * * * *"})
        found = decide(job, START + 45 * SECOND, GRACE, suspensions)
        assert [(at - START) / SECOND for at in found.times] == [0, 30, 40]
        (span,) = found.spans
        assert (span.begins_at - START, span.cursor) == (10 * SECOND, START + 30 * SECOND)
        assert START + 20 * SECOND < span.ends_at <= START + 30 * SECOND

    def test_a_gap_is_cut_where_suspensions_begin_and_end(self) -> None:
        suspensions = SuspensionSet((make_suspension(START + 100 * MINUTE, START + 200 * MINUTE),))
        found = decide(make_due_job(), START + 300.5 * MINUTE, GRACE, suspensions)
        assert found.times == minutes(300)
        assert spans_of(found) == [
            (100, 200, "blackout", OPEN),
            (0, 100, Reason.DOWNTIME, SETTLED),
            (200, 300, Reason.DOWNTIME, SETTLED),
        ]

    def test_a_gap_wholly_under_a_suspension_makes_up_for_nothing(self) -> None:
        found = decide(make_due_job(), START + HOUR, GRACE, SuspensionSet((make_suspension(START - HOUR),)))
        assert found.times == []
        assert {span.suspension_id for span in found.spans} == {1}

    def test_the_last_missed_time_outside_of_suspensions_still_runs(self) -> None:
        """An hourly job, its scheduler down from before the suspension until long after it."""
        job = make_due_job({"cron": "0 * * * *"})
        suspensions = SuspensionSet((make_suspension(START + 2 * HOUR, START + 4.5 * HOUR),))
        found = decide(job, START + 4.6 * HOUR, GRACE, suspensions)
        assert (found.times, found.catch_up) == ([START + HOUR], True)
        assert spans_of(found) == [(120, 270, "blackout", OPEN), (0, 60, Reason.DOWNTIME, SETTLED)]

    def test_a_suspension_of_others_is_none_of_ours(self) -> None:
        suspensions = SuspensionSet(
            (make_suspension(START, tenant_id=2), make_suspension(START, tag_name="team", tag_value="b"))
        )
        found = decide(make_due_job(tags_text='{"team": "a"}'), START + SECOND, GRACE, suspensions)
        assert (found.times, found.spans) == ([START], [])

    def test_a_suspension_that_holds_keeps_no_planned_time_from_its_run(self) -> None:
        suspensions = SuspensionSet((make_suspension(START, effect=Effect.HOLD.value),))
        assert decide(make_due_job(), START + SECOND, GRACE, suspensions).times == [START]


class TestAll:
    """The policy `all` leaves a span for the cursor."""

    def test_the_whole_gap_is_left_to_work_off(self) -> None:
        job = make_due_job(catch_up={"policy": "all"})
        found = decide(job, START + 60.5 * MINUTE, GRACE)
        assert found.times == minutes(60)
        (span,) = found.spans
        assert (span.state, span.policy, span.cursor) == (WORKING, ALL, START)
        assert spans_of(found) == [(0, 60, Reason.DOWNTIME, WORKING)]

    def test_from_its_new_end_if_the_newest_go_first(self) -> None:
        job = make_due_job(catch_up={"policy": "all", "order": "newest"})
        found = decide(job, START + 60.5 * MINUTE, GRACE)
        assert found.spans[0].cursor == START + 59 * MINUTE

    def test_what_is_older_than_the_window_is_reported_as_too_old(self) -> None:
        job = make_due_job(catch_up={"policy": "all", "window": 1800})
        found = decide(job, START + 60.5 * MINUTE, GRACE)
        assert spans_of(found) == [(0, 31, Reason.TOO_OLD, SETTLED), (31, 60, Reason.DOWNTIME, WORKING)]

    def test_a_time_less_than_a_millisecond_beyond_the_window_is_too_old(self) -> None:
        job = make_due_job(catch_up={"policy": "all", "window": 1800})
        found = decide(job, START + 30 * MINUTE + SECOND / 2000, GRACE)
        assert spans_of(found) == [(0, 1, Reason.TOO_OLD, SETTLED), (1, 29, Reason.DOWNTIME, WORKING)]

    def test_no_window_reaches_beyond_the_partitions(self) -> None:
        job = make_due_job({"cron": "0 0 * * *"}, catch_up={"policy": "all", "window": 90 * 86_400})
        found = decide(job._replace(due_at=START - 60 * DAY), START, GRACE)
        old, left = found.spans
        assert (old.reason, old.ends_at) == (Reason.TOO_OLD, left.begins_at)
        assert START - 28 * DAY <= left.begins_at <= START - 27 * DAY

    def test_a_gap_that_is_all_too_old_leaves_nothing_to_work_off(self) -> None:
        job = make_due_job({"at": (START - 2 * DAY).isoformat()}, catch_up={"policy": "all"})
        found = decide(job._replace(due_at=START - 2 * DAY), START, GRACE)
        assert [span.reason for span in found.spans] == [Reason.TOO_OLD]
        assert found.finishes


class TestChanges:
    """Single planned times that somebody skipped or moved."""

    def test_a_skipped_time_gets_a_row_that_says_who_and_why(self) -> None:
        change = make_change(START, reason="the bank is closed")
        found = decide(make_due_job(), START + SECOND, GRACE, changes=[change])
        assert (found.times, found.done_changes) == ([START], [1])
        assert found.is_skipped(START)
        assert found.special[START].reason == "skipped: by ann, the bank is closed"

    def test_a_skipped_time_of_a_gap_gets_its_row_too(self) -> None:
        found = decide(
            make_due_job(), START + 10.5 * MINUTE, GRACE, changes=[make_change(START + 5 * MINUTE)]
        )
        assert sorted(found.times) == minutes(5, 10)
        assert spans_of(found) == [(0, 5, Reason.DOWNTIME, SETTLED), (6, 10, Reason.DOWNTIME, SETTLED)]
        assert found.done_changes == [1]

    def test_the_last_missed_time_is_not_one_that_was_skipped(self) -> None:
        job = make_due_job({"cron": "0 * * * *"})
        found = decide(job, START + 3.5 * HOUR, GRACE, changes=[make_change(START + 3 * HOUR)])
        assert [at for at in found.times if not found.is_skipped(at)] == [START + 2 * HOUR]
        assert spans_of(found) == [(0, 120, Reason.DOWNTIME, SETTLED)]

    def test_a_skipped_time_to_come_changes_nothing_yet(self) -> None:
        found = decide(make_due_job(), START + SECOND, GRACE, changes=[make_change(START + MINUTE)])
        assert (found.times, found.done_changes, found.next_at) == ([START], [], START + MINUTE)

    def test_a_time_that_was_moved_is_pending_until_then(self) -> None:
        job = make_due_job({"cron": "0 * * * *"})
        found = decide(job, START + SECOND, GRACE, changes=[make_change(START, START + 90 * SECOND)])
        assert (found.times, found.spans, found.done_changes) == ([], [], [])
        assert found.next_at == START + 90 * SECOND

    def test_it_runs_at_its_new_instant_under_its_own_identity(self) -> None:
        job = make_due_job({"cron": "0 * * * *"}, due_at=START + 90 * SECOND)
        change = make_change(START, START + 90 * SECOND, reason="backup first")
        found = decide(job, START + 91 * SECOND, GRACE, changes=[change])
        assert (found.times, found.done_changes, found.next_at) == ([START], [1], START + HOUR)
        special = found.special[START]
        assert (special.available_at, special.reason) == (START + 90 * SECOND, "moved: by ann, backup first")

    def test_a_time_moved_to_before_runs_early_and_not_again(self) -> None:
        job = make_due_job({"cron": "0 * * * *"}, due_at=START - 10 * MINUTE)
        change = make_change(START, START - 10 * MINUTE)
        early = decide(job, START - 9.9 * MINUTE, GRACE, changes=[change])
        assert (early.times, early.next_at) == ([START], START)
        later = decide(
            job._replace(due_at=START), START + SECOND, GRACE, changes=[change._replace(done=True)]
        )
        assert (later.times, later.next_at) == ([], START + HOUR)

    def test_a_planned_time_at_the_instant_another_was_moved_to_runs_as_well(self) -> None:
        job = make_due_job({"cron": "0 * * * *"}, due_at=START + HOUR)
        change = make_change(START, START + HOUR)
        found = decide(job, START + HOUR + SECOND, GRACE, changes=[change])
        assert sorted(found.times) == [START, START + HOUR]

    def test_a_moved_time_that_was_missed_runs_by_the_policy(self) -> None:
        job = make_due_job({"cron": "0 0 * * *"}, due_at=START + HOUR)
        change = make_change(START - 12 * HOUR, START + HOUR)
        late = START + 2 * HOUR
        found = decide(job, late, GRACE, changes=[change])
        assert (found.times, found.special[START - 12 * HOUR].available_at) == ([START - 12 * HOUR], late)
        skips = job._replace(catch_up_text='{"policy": "skip", "window": 86400}')
        found = decide(skips, late, GRACE, changes=[change])
        assert (found.times, len(found.spans), found.done_changes) == ([], 1, [1])

    @pytest.mark.parametrize(
        ("effect", "expected"),
        [
            (Effect.SKIP, (START + MINUTE, True)),
            (Effect.RUN_AFTER, (START + HOUR, False)),
            (Effect.CATCH_UP, (START + MINUTE, False)),
        ],
    )
    def test_a_time_that_was_moved_into_a_suspension_has_its_effect(
        self, effect: Effect, expected: tuple[datetime, bool]
    ) -> None:
        job = make_due_job({"cron": "0 * * * *"}, due_at=START + MINUTE)
        suspensions = SuspensionSet(
            (make_suspension(START + 30 * SECOND, START + HOUR, effect=effect.value),)
        )
        found = decide(job, START + MINUTE, GRACE, suspensions, [make_change(START, START + MINUTE)])
        special = found.special[START]
        assert (special.available_at, special.skipped) == expected

    def test_a_time_too_far_ahead_for_a_row_is_refused(self) -> None:
        job = make_due_job({"cron": "0 0 1 1 *"})
        with pytest.raises(ValueError, match="too far ahead"):
            decide(job, START, GRACE, changes=[make_change(START + 44 * DAY, START)])

    def test_the_clock_stands_at_what_comes_first(self) -> None:
        changes = [make_change(START, START + HOUR), make_change(START, START + MINUTE, done=True)]
        assert next_clock(START + 2 * HOUR, changes) == START + HOUR
        assert next_clock(START + MINUTE, changes) == START + MINUTE
        assert next_clock(None, changes) == START + HOUR
        assert next_clock(None, [make_change(START)]) is None


class TestFlexibleWindow:
    JITTERED = {"cron": "0 * * * *", "jitter": 300}

    def test_a_run_may_begin_a_little_later_always_the_same(self) -> None:
        found = decide(make_due_job(self.JITTERED), START + SECOND, GRACE)
        special = found.special[START]
        assert START <= special.available_at < START + 5 * MINUTE
        assert special.reason == "flexible_window"
        assert decide(make_due_job(self.JITTERED), START + 2 * SECOND, GRACE).special[START] == special
        other = make_due_job(self.JITTERED, id=UUID(int=8))
        assert decide(other, START + SECOND, GRACE).special[START].available_at != special.available_at

    def test_what_is_made_up_for_goes_at_once(self) -> None:
        found = decide(make_due_job(self.JITTERED), START + 30 * MINUTE, GRACE)
        assert (found.times, found.catch_up, found.special) == ([START], True, {})


class TestCalendar:
    CLOSED = json.dumps(
        {"timezone": "UTC", "dates": [{"date": "2026-11-19", "name": "Day off"}], "weekly": {}}
    )

    def test_closed_days_have_no_planned_times(self) -> None:
        schedule = {"cron": "0 12 * * *", "calendar": {"name": "ours", "on_closed": "exclude"}}
        found = decide(make_due_job(schedule, calendar=self.CLOSED), START + SECOND, GRACE)
        assert found.next_at == START + 2 * DAY

    def test_an_edited_calendar_counts_at_the_next_visit(self) -> None:
        schedule = {"cron": "0 12 * * *", "calendar": {"name": "ours", "on_closed": "exclude"}}
        opened = json.dumps({"timezone": "UTC", "dates": [], "weekly": {}})
        decide(make_due_job(schedule, calendar=self.CLOSED), START + SECOND, GRACE)
        assert decide(make_due_job(schedule, calendar=opened), START + SECOND, GRACE).next_at == START + DAY


def test_a_job_that_stands_still_has_no_planned_times() -> None:
    found = decide(make_due_job(status="paused"), START + SECOND, GRACE)
    assert (found.times, found.next_at, found.finishes) == ([], None, False)


class Ledger:
    """What decisions left behind, as the database keeps it."""

    def __init__(self, job: DueJob, changes: list[ChangedTime]) -> None:
        self.job = job
        self.changes = changes
        self.runs: Counter[datetime] = Counter()
        self.spans: list[Span] = []

    def write(self, found: TriggerDecision) -> None:
        # The key of a run refuses a second one of its time.
        self.runs.update(at for at in found.times if at not in self.runs)
        for span in found.spans:
            longer = next((old for old in self.spans if self._goes_on(old, span)), None)
            if longer is not None:
                self.spans.remove(longer)
                span = longer._replace(ends_at=span.ends_at, cursor=span.cursor)
            self.spans.append(span)
        done = set(found.done_changes)
        self.changes = [change._replace(done=change.done or change.id in done) for change in self.changes]

    @staticmethod
    def _goes_on(old: Span, new: Span) -> bool:
        return (
            new.state == old.state == OPEN
            and old.suspension_id == new.suspension_id
            and old.cursor == new.begins_at
        )

    def seen_by(self, due_at: datetime) -> list[ChangedTime]:
        return [change for change in self.changes if not change.done or change.planned_at >= due_at]

    def outcomes(self, at: datetime) -> int:
        return self.runs[at] + sum(span.begins_at <= at < span.ends_at for span in self.spans)


HALF_MINUTES = st.integers(0, 240).map(lambda number: START + number * MINUTE / 2)


@st.composite
def some_suspensions(draw: st.DrawFn) -> SuspensionSet:
    suspensions = []
    for number in range(draw(st.integers(0, 4))):
        begins_at = draw(HALF_MINUTES)
        over_at = draw(st.none() | st.integers(1, 60).map(lambda n, b=begins_at: b + n * MINUTE / 2))  # type: ignore[misc]
        effect = draw(st.sampled_from(Effect.values))
        suspensions.append(make_suspension(begins_at, over_at, id=number + 1, effect=effect))
    return SuspensionSet(tuple(suspensions))


@st.composite
def some_changes(draw: st.DrawFn, times: list[datetime]) -> list[ChangedTime]:
    chosen = draw(st.lists(st.sampled_from(times), unique=True, max_size=4)) if times else []
    return [
        make_change(at, draw(st.none() | HALF_MINUTES), id=number + 1) for number, at in enumerate(chosen)
    ]


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_each_planned_time_has_exactly_one_outcome(data: st.DataObject) -> None:
    schedules = [{"cron": "* * * * *"}, {"cron": "*/7 * * * *"}, {"every": 90}, {"cron": "*/20 * * * * *"}]
    job = make_due_job(
        data.draw(st.sampled_from(schedules)),
        catch_up={
            "policy": data.draw(st.sampled_from(["skip", "last", "all"])),
            "window": data.draw(st.sampled_from([600, 86_400])),
            "order": data.draw(st.sampled_from(["oldest", "newest"])),
        },
    )
    first = job.next_time(START - SECOND)
    assert first is not None
    planned = [first]
    while (following := job.next_time(planned[-1])) is not None and following <= START + 120 * MINUTE:
        planned.append(following)
    suspensions = data.draw(some_suspensions())
    ledger = Ledger(job, data.draw(some_changes(planned)))
    clock: datetime | None = next_clock(first, ledger.changes)
    for seconds in sorted(data.draw(st.lists(st.integers(0, 7200), min_size=1, max_size=12))):
        instant = START + seconds * SECOND
        if clock is None or clock > instant:
            continue
        known = SuspensionSet(
            tuple(suspension for suspension in suspensions.rows if suspension.begins_at <= instant)
        )
        found = decide(job._replace(due_at=clock), instant, GRACE, known, ledger.seen_by(clock))
        ledger.write(found)
        clock = found.next_at
        assert ledger.runs.keys() <= set(planned)
        for at in planned:
            moved = next((c.moved_to for c in ledger.changes if c.planned_at == at and c.moved_to), None)
            expected = 1 if (moved or at) <= instant else 0
            assert ledger.outcomes(at) == expected, (at, instant, ledger.spans)


def test_a_whole_gap_is_settled_for_a_reason_of_its_own() -> None:
    job = make_due_job(catch_up={"policy": "skip"})
    found = settle_missed(job, START + 10 * MINUTE, START + 10 * MINUTE, "paused", policy="last")
    assert (found.times, found.catch_up) == (minutes(9), True)
    assert spans_of(found) == [(0, 9, "paused", SETTLED)]


def test_what_nobody_can_reckon_is_reported_but_for_times_that_have_or_await_an_outcome_of_their_own() -> (
    None
):
    job = make_due_job({"cron": "61 * * * *"})
    changes = [
        make_change(START, START + HOUR, id=1),
        make_change(START + 2 * MINUTE, START - MINUTE, id=2, done=True),
        make_change(START + 4 * MINUTE, id=3),
        make_change(START + 5 * MINUTE, START + 7 * MINUTE, id=4),
        make_change(START - 5 * MINUTE, START + MINUTE, id=5),
        make_change(START - 6 * MINUTE, START + HOUR, id=6),
        make_change(START + 20 * MINUTE, START + 8 * MINUTE, id=7),
        make_change(START + 30 * MINUTE, id=8),
    ]
    found = note_all(job, START + 10 * MINUTE, "unrunnable", changes)
    assert found.done_changes == [3, 4, 5, 7]
    assert {span.reason for span in found.spans} == {"unrunnable"} and not found.times
    millisecond = timedelta(milliseconds=1)
    assert [(span.begins_at, span.ends_at) for span in found.spans] == [
        (START - 5 * MINUTE, START - 5 * MINUTE + millisecond),
        (START + 20 * MINUTE, START + 20 * MINUTE + millisecond),
        (START + millisecond, START + 2 * MINUTE),
        (START + 2 * MINUTE + millisecond, START + 10 * MINUTE),
    ]
