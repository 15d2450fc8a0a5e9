"""Beatkeeper for existing code bases: `from beatkeeper import Beatkeeper`.

    in their code  app is what they add; declarations and retry_options read decorators, declared_task is what a type
                   checker sees of a task below one, asked_runs makes its `run_now` and `schedule`, eager_runs carries
                   them out in tests of theirs; plan compares, `python -m beatkeeper` (__main__) shows it; errors
    the platform   links chooses a link: api_link over client, or database_link over code_base.sql
    a worker       worker hooks into Celery's; guarded keeps its guard and feed, feed_keeper replaces one that hangs, of
                   which stillness is the measure; spawned and processes are how;
                   runtime is the folder they share, with slots (slot_header: of the worker as a whole)
    permits        permits brings them over a permit_connection, checked by broker_tls, from what queue_search finds;
                   own_loop turns where the pool has no loop; permit_form looks at them, admission says where they go:
                   a permit_task, or by doorbell to the children of a feed; named_lanes serves what none comes for
    a run          work claims, as many as batches says, executes and reports by its hand on a slot; execute is one
                   attempt: interrupts stop it, watch ends it, capture and log_store keep its lines, outcomes says what
                   came of it, retries decides
    targets        targets by kind, celery_target is the one of Celery tasks; references become secrets by secret_box,
                   masking takes them out again; callbacks has the token of an outcome that is told later
    the guard      guard ends what must not go on; heartbeat talks to the ledger, delivery tells it what lies in spool;
                   claim_details is how slots and spool have a claim and its end written down; orphans are what dead
                   workers left
    the ledger     ledger is the interface; postgres runs ledger.sql, read by sql; https speaks wire, and remote_logs
                   brings the lines along; clock_skew tells how far the clocks are apart, ids makes identities

The platform uses parts of it too, so that a rule is written once: it imports them, and nothing here imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import Beatkeeper as Beatkeeper
    from .errors import BeatkeeperError as BeatkeeperError
    from .errors import PlatformAway as PlatformAway
    from .errors import PlatformRefused as PlatformRefused
    from .link import RequestedRun as RequestedRun
    from .outcomes import PermanentError as PermanentError

__all__ = [
    "Beatkeeper",
    "BeatkeeperError",
    "PermanentError",
    "PlatformAway",
    "PlatformRefused",
    "RequestedRun",
]
WHERE = {
    "Beatkeeper": "app",
    "BeatkeeperError": "errors",
    "PlatformAway": "errors",
    "PlatformRefused": "errors",
    "RequestedRun": "link",
    "PermanentError": "outcomes",
}


def __getattr__(name: str) -> Any:
    """Imported when asked for: the guard is part of this package and must stay small, without Celery."""
    if name in WHERE:
        return getattr(import_module(f".{WHERE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
