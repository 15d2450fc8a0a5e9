"""The children of a feed: one process per slot, each claiming where a wake-up or a response names a queue."""

from __future__ import annotations

import logging
import os
import resource
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from celery import Celery
from celery.concurrency import prefork

from ..execution.claim_loop import ClaimLoop
from ..ledger.interface import WorkQueue
from ..process import processes
from ..shared.folder import Config
from ..shared.wakeup_pipe import WakePipe
from .wakeup_task import TURN_SECONDS

logger = logging.getLogger(__name__)

POLL = 0.05
RESTART_PAUSE = 1.0


@dataclass
class FeedChildren:
    app: Celery
    loop: ClaimLoop
    pids: dict[int, float] = field(default_factory=dict)
    pause_until: float = 0.0

    def keep(self) -> None:
        """Replace the children that died."""
        self.reap()
        while len(self.pids) < self.loop.runtime.table.size and time.monotonic() >= self.pause_until:
            self.fork()

    def reap(self) -> None:
        for pid, since in list(self.pids.items()):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if not gone:
                continue
            del self.pids[pid]
            if status and time.monotonic() - since < RESTART_PAUSE:
                logger.error("A child ended at once (status %d)", status)
                self.pause_until = time.monotonic() + RESTART_PAUSE

    def fork(self) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self.pids[pid] = time.monotonic()
            return
        status = 1
        try:
            prefork.process_initializer(self.app, self.loop.runtime.config.name)
            processes.die_with_parent(parent)
            leaving: list[int] = []
            # A handler, not SIG_IGN, which the processes of a body would inherit. The current run is finished.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda number, _frame: leaving.append(number))
            serve(self.loop, len(self.pids), leaving)
            status = 0
        except BaseException:
            logger.exception("A child of the feed failed")
        finally:
            # Not `sys.exit`: the parent's exit handlers are not this child's to run.
            os._exit(status)


def serve(loop: ClaimLoop, turn: int, leaving: Sequence[int] = ()) -> None:
    """Claim in the queues that wake-ups and responses name, until the worker or this child leaves.

    A round without work is one look at shared memory.
    """
    header, config, seen = loop.runtime.table.header, loop.runtime.config, 0
    wake_pipe = WakePipe(loop.runtime.folder)
    queues: dict[tuple[int, int], WorkQueue] = {}
    done = 0
    while not header.draining and not leaving and not must_be_replaced(config, done):
        if header.responses != seen:
            seen = header.responses
            with_work = loop.runtime.queues_with_work()
            queues.update({(queue.pool_id, queue.tenant_id): queue for queue in with_work})
        if not loop.may_claim():
            time.sleep(POLL)
            continue
        if woken_for := wake_pipe.wait(0.0 if queues else POLL):
            done += serve_queue(loop, woken_for)
        # Children begin at different queues, and each at another one next time.
        waiting = list(queues.values())
        start = turn % len(waiting) if waiting else 0
        for queue in waiting[start:] + waiting[:start]:
            # Looked at before each queue: between two queues no slot is taken, so a supervisor that waits for
            # the end of this child takes it for finished, and kills it.
            if leaving or must_be_replaced(config, done):
                return
            if found := serve_queue(loop, queue):
                done += found
            else:
                del queues[queue.pool_id, queue.tenant_id]
        turn += 1


def must_be_replaced(config: Config, done: int) -> bool:
    """Return whether another child should take its place, by the bounds of the host's own pool.

    The memory that a child began with is looked at after a run only, or it would end before its first.
    """
    # In KiB, as the host's own pool measures it.
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if done else 0
    return 0 < config.runs_per_child <= done or 0 < config.memory_per_child < memory


def serve_queue(loop: ClaimLoop, queue: WorkQueue) -> int:
    try:
        return loop.work_on_queue(queue, TURN_SECONDS)
    except Exception:
        logger.exception("A claim in the queue %d:%d failed", queue.pool_id, queue.tenant_id)
        time.sleep(RESTART_PAUSE)
        return 0
