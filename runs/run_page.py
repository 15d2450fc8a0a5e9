"""What the page of a run shows: its facts, its attempts, its log as far as a page can bear it."""

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from django.utils.safestring import SafeString

from jobs.display import NOTHING, brief, moment
from jobs.staff import BAD, BUSY, GOOD, QUIET, WARNING, label
from runs import reasons
from runs.models import Attempt, AttemptOutcome, LiveRun, Run, WorkerNode
from runs.run_logs import Line, NoSuchAttempt, attempts_of, lines, read_log
from runs.states import FinalState, LiveState
from scheduler_project.sdk.log_store import LogMissing

LINES_SHOWN = 500
CHARACTERS_SHOWN = 2000
COLOURS: dict[str, str] = {
    LiveState.DELAYED: WARNING,
    LiveState.READY: QUIET,
    LiveState.QUEUED: QUIET,
    LiveState.RUNNING: BUSY,
    LiveState.WAITING_CALLBACK: BUSY,
    LiveState.BLOCKED: WARNING,
    FinalState.SUCCEEDED: GOOD,
    FinalState.DEAD: BAD,
    FinalState.CANCELLED: QUIET,
    FinalState.SKIPPED: WARNING,
}
OUTCOME_COLOURS: dict[str, str] = {
    AttemptOutcome.SUCCEEDED: GOOD,
    AttemptOutcome.FAILED: BAD,
    AttemptOutcome.TIMEOUT: BAD,
    AttemptOutcome.LOST: WARNING,
}


@dataclass(frozen=True)
class LogPart:
    """The end of a log: what went wrong stands there."""

    lines: list[dict[str, str]]
    left_out: int = 0
    missing: str = ""


def state_of(run: Run) -> str:
    """The one state of a run. A row whose live half has just gone is about to get its outcome."""
    if run.state:
        return run.state
    live = live_of(run)
    return live.state if live else "unknown"


def live_of(run: Run) -> LiveRun | None:
    found: LiveRun | None = getattr(run, "live", None)
    return found


def state_label(state: str) -> SafeString:
    return label(state.replace("_", " "), COLOURS.get(state, QUIET))


def outcome_label(attempt: Attempt) -> SafeString:
    return label(attempt.outcome.replace("_", " "), OUTCOME_COLOURS.get(attempt.outcome, QUIET))


def took(started: datetime | None, finished: datetime | None) -> str:
    if started is None:
        return NOTHING
    return brief((finished or datetime.now(timezone.utc)) - started)


def reason_of(run: Run) -> str:
    live = live_of(run)
    if live is None:
        return run.reason
    return reasons.in_words(live)


def attempt_rows(run: Run) -> list[dict[str, Any]]:
    rows = [
        {
            "number": attempt.number,
            "outcome": outcome_label(attempt),
            "worker": attempt.worker_name or attempt.worker,
            "started": moment(attempt.started_at),
            "took": took(attempt.started_at, attempt.finished_at),
            "error": attempt.error_line,
            "exit_code": attempt.exit_code,
            "then": attempt.next_state.replace("_", " "),
        }
        for attempt in attempts_of(run)
    ]
    live = live_of(run)
    if live and live.state in (LiveState.RUNNING, LiveState.WAITING_CALLBACK):
        rows.append(
            {
                "number": live.attempt,
                "outcome": state_label(live.state),
                "worker": worker_name(live),
                "started": moment(live.claimed_at),
                "took": took(live.claimed_at, None),
                "error": "",
                "exit_code": None,
                "then": reasons.in_words(live),
            }
        )
    return rows


def worker_name(live: LiveRun) -> str:
    if live.worker is None:
        return ""
    name = WorkerNode.objects.filter(pk=live.worker).values_list("name", flat=True).first()
    return name or str(live.worker)


def log_part(run: Run, number: int | None = None) -> LogPart:
    try:
        log = read_log(run, number)
    except (LogMissing, NoSuchAttempt) as missing:
        return LogPart([], missing=str(missing) or str(type(missing).__doc__))
    end = lines(b"\n".join(log.splitlines()[-LINES_SHOWN:]))
    shown = [shown_line(line) for line in end]
    return LogPart(shown, left_out=max(0, len(log.splitlines()) - len(shown)))


def log_as_text(run: Run, number: int | None = None) -> str:
    return "".join(
        f"{line.at} {line.level or line.stream:<8} {line.text}\n" for line in lines(read_log(run, number))
    )


def shown_line(line: Line) -> dict[str, str]:
    left_out = len(line.text) - CHARACTERS_SHOWN
    more = f"… ({left_out:,} characters more)" if left_out > 0 else ""
    return {
        "at": line.at,
        "clock": line.at[11:23],
        "source": line.level or line.stream,
        "text": line.text[:CHARACTERS_SHOWN] + more,
        "tone": tone(line.stream, line.level),
    }


def tone(stream: str, level: str) -> str:
    if level in ("ERROR", "CRITICAL") or stream == "stderr":
        return "bk-error"
    if level == "WARNING":
        return "bk-warning"
    return ""


def lasted(run: Run) -> str:
    live = live_of(run)
    return took(live.started_at if live else run.started_at, run.finished_at)


def late_by(run: Run) -> str:
    live = live_of(run)
    started = live.started_at if live else run.started_at
    if started is None or started - run.planned_at < timedelta(seconds=1):
        return ""
    return f"{brief(started - run.planned_at)} after its time"
