"""The parts of a run's page: its attempts and the end of its log."""

from datetime import datetime, timedelta, timezone
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString

from jobs.admin import html
from jobs.admin.formatting import NOTHING, brief, moment
from jobs.admin.html import BAD, BUSY, GOOD, QUIET, WARNING, link, page_of, sentence
from runs.admin.log_styles import pieces
from runs.history import attempts_with_open
from runs.logs import Line, NoSuchAttempt, lines, read_log
from runs.models import AttemptOutcome, Run
from runs.reasons import describe
from runs.services.explain import Obstacle
from runs.states import FinalState, LiveState
from scheduler_project.sdk.logs.store import LogMissing

LINES_SHOWN = 500
CHARACTERS_SHOWN = 2000
# Of runs and their attempts.
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
    AttemptOutcome.FAILED: BAD,
    AttemptOutcome.TIMEOUT: BAD,
    AttemptOutcome.LOST: WARNING,
}


def state_label(state: str) -> SafeString:
    """Label a state, or the gap between the end of a run's live row and its outcome."""
    return html.state_label(state or "unknown", COLOURS)


def took(started: datetime | None, finished: datetime | None) -> str:
    return brief((finished or datetime.now(timezone.utc)) - started) if started else NOTHING


def reason_of(run: Run) -> str:
    live = run.live_or_none
    return describe(run.reason) if live is None else live.describe_reason()


def obstacle_line(found: Obstacle) -> SafeString:
    """Render an obstacle as a sentence, with a link to the row it stands on."""
    unblocked_by = f" Unblocked by: {found.unblocked_by}." if found.unblocked_by else ""
    subject = format_html(" {}", link(page_of(found.subject), "Show")) if found.subject else ""
    return format_html("{}.{}{}", sentence(found.detail), unblocked_by, subject)


def attempt_rows(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "number": attempt.number,
            "outcome": state_label(attempt.outcome),
            "worker": attempt.worker_name or attempt.worker,
            "started": moment(attempt.started_at),
            "took": took(attempt.started_at, attempt.finished_at),
            "error": attempt.error_line,
            "exit_code": attempt.exit_code,
            "then": attempt.next_state.replace("_", " ") if attempt.finished_at else reason_of(run),
        }
        for attempt in attempts_with_open(run)
    ]


def log_tail(run: Run, number: int | None = None) -> dict[str, Any]:
    """Return the last lines of a log, where errors are found."""
    try:
        log = read_log(run, number)
    except (LogMissing, NoSuchAttempt) as missing:
        return {"missing": str(missing) or str(type(missing).__doc__)}
    raw = log.splitlines()
    left_out = max(0, len(raw) - LINES_SHOWN)
    shown = [line_for_page(line) for line in lines(b"\n".join(raw[left_out:]), left_out + 1)]
    return {"lines": shown, "left_out": left_out}


def line_for_page(line: Line) -> dict[str, Any]:
    left_out = len(line.with_logger) - CHARACTERS_SHOWN
    more = f"… ({left_out:,} characters more)" if left_out > 0 else ""
    return {
        "at": line.at,
        "clock": line.at[11:23],
        "source": line.level or line.stream,
        "number": line.number,
        "pieces": pieces(line.with_logger[:CHARACTERS_SHOWN] + more),
        "tone": tone(line.stream, line.level),
    }


def tone(stream: str, level: str) -> str:
    if level in ("ERROR", "CRITICAL") or stream == "stderr":
        return "bk-error"
    if level == "WARNING":
        return "bk-warning"
    return ""


def started_at(run: Run) -> datetime | None:
    return (run.live_or_none or run).started_at


def lasted(run: Run) -> str:
    return took(started_at(run), run.finished_at)


def late_by(run: Run) -> str:
    started = started_at(run)
    if started is None or started - run.planned_at < timedelta(seconds=1):
        return ""
    return f"{brief(started - run.planned_at)} late"
