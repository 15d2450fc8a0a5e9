"""The guard: a small process beside a worker that stops what must not go on.

It looks at the slots ten times a second and never waits for the network: heartbeats and deliveries have threads
of their own. What it enforces:

- the fence: without an answered heartbeat in time, whatever holds a claim is killed before anybody else may
  take it over. A slot that runs somebody else's task is left alone;
- time limits and cancels: asked first (SIGUSR1 to the process, SIGTERM to a body's group), killed after a grace;
  a cancel that terminates kills at once;
- claims that are no longer ours: killed at once;
- claims whose process died: told to the ledger, with the log as far as it came.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import processes
from .batches import BATCH_SECONDS
from .claim_details import claim_of
from .delivery import Delivery
from .feed_keeper import FeedKeeper
from .heartbeat import Heartbeat, in_hand
from .ledger import Claim, token_at
from .orphans import Orphans
from .outcomes import CANCELLED, TIMEOUT, WORKER_LOST, Outcome, now_utc, stated_failure, stopped_outcome
from .remote_logs import Follower
from .retries import classified, decide
from .runtime import Runtime, is_remote
from .slot_header import NOBODY
from .slots import ASKED, CLAIMED, FOREIGN, FREE, HARD, HELD, NOT_KILLED, REPORTING, SOFT, Slot
from .spool import ASK_SECONDS, Unheard, Untold, unheard_now, untold_of
from .stillness import Stillness

logger = logging.getLogger(__name__)

TICK = 0.1
HAND_OVER_WAIT = 0.2
HUNG_IN_A_REQUEST_SECONDS = 60.0
FEED_PATIENCE = 3.0
LONGEST_FEED_PATIENCE = 15.0
FEED_RESTART = 10.0
LAST_WORDS_SECONDS = 3.0


class Guard:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.table = runtime.table
        self.config = runtime.config
        self.heartbeat = Heartbeat(runtime, runtime.open_ledger())
        self.delivery = Delivery(runtime, runtime.open_ledger())
        self._hung_since = 0.0
        self._parents_loop = Stillness()
        self._was_full = self._was_draining = False
        self.feed_keeper = FeedKeeper(runtime)
        self._feed_started = 0.0

    def run(self) -> None:
        threading.Thread(target=Orphans(self.runtime.folder, Guard).keep_settling, daemon=True).start()
        self.heartbeat.start()
        self.delivery.start()
        if is_remote(self.config.ledger_url):
            Follower(self.runtime, self.runtime.open_remote_ledger).start()
        while self.parent_lives() and not (self.table.stopping and not self.any_claim()):
            self.table.ticked()
            self.try_tick()
            if self.heartbeat.news.wait(TICK):
                self.heartbeat.news.clear()
        self.last_words()

    def try_tick(self) -> None:
        """Whatever goes wrong, the watch goes on."""
        try:
            self.tick()
        except Exception:
            logger.exception("A look at the worker failed")

    def tick(self) -> None:
        now = processes.boottime()
        self.watch_parent(now)
        if self.heartbeat.begin_anew:
            # Nobody claims for an incarnation that is over.
            self.table.fence_at = 0.0
        for index, state in enumerate(self.table.states()):
            if state != FREE:
                # Of many slots some may take long, above all where much is to be killed.
                self.table.ticked()
                self.try_look_at(index, now)
        self.notice_changes()
        self.feed_on_demand(now)

    # One slot.

    def try_look_at(self, index: int, now: float) -> None:
        """A full disk or a slot we cannot read must not end the watch over the others."""
        try:
            self.look_at(index, now)
        except Exception:
            logger.exception("A look at slot %d failed", index)

    def look_at(self, index: int, now: float) -> None:
        if self.table.take_ownership(index):
            self.bury(index)
            return
        if self.table.state(index) == FOREIGN:
            return
        slot = self.table.read(index)
        if (
            slot is not None
            and slot.state in (ASKED, REPORTING)
            and now - slot.since > HUNG_IN_A_REQUEST_SECONDS
        ):
            # Also behind the fence: until nothing is in hand the worker does not begin anew.
            self.kill(slot, "hung", HARD, slot.state)
        if self.table.fenced:
            self.fence_off(index, slot)
        elif slot is not None:
            self.enforce(slot, now)
            self.relieve(slot, now)

    def enforce(self, slot: Slot, now: float) -> None:
        request = self.table.kill_request(slot.index)
        asked = request.stage if request.token == slot.token else NOT_KILLED
        if slot.state != HELD:
            return
        if slot.token in self.heartbeat.heard.gone:
            self.kill(slot, "gone", HARD)
        elif self.table.draining and now >= self.table.drain_until:
            self.kill(slot, "given_back", HARD)
        elif asked != HARD and slot.token in self.heartbeat.heard.terminates:
            self.kill(slot, CANCELLED, HARD)
        elif asked == NOT_KILLED:
            if slot.token in self.heartbeat.heard.cancels:
                self.kill(slot, CANCELLED, SOFT)
            elif slot.deadline and now >= slot.deadline:
                self.kill(slot, TIMEOUT, SOFT)
        elif now >= request.at + self.config.grace:
            self.kill(slot, request.reason, HARD, insist=asked == HARD)

    def kill(self, slot: Slot, reason: str, stage: int, state: int = HELD, insist: bool = False) -> None:
        """Ends this claim's body and no other: the hand-over lock holds the slot still while we look and kill.

        A body in a group of its own is killed there, and its process reports; `insist` takes that process too.
        """
        with self.table.hand_over(slot.index, wait=HAND_OVER_WAIT) as still:
            current = self.table.read(slot.index)
            if not still or current is None or (current.token, current.state) != (slot.token, state):
                return
            self.table.request_kill(slot.index, slot.token, reason, stage, processes.boottime())
            if stage == SOFT:
                self.ask_to_stop(current)
            else:
                self.kill_body(current, insist or reason in ("gone", "given_back", "hung"))
        if reason == CANCELLED:
            # Whoever asked for it sees that it was heard.
            self.heartbeat.hurry()

    def relieve(self, slot: Slot, now: float) -> None:
        """Nothing of a batch waits behind a long run, and what is cancelled or no longer ours is not begun."""
        if slot.state != HELD or slot.count == 1:
            return
        heard = self.heartbeat.heard
        waiting = range(slot.nth + 1, slot.count)
        if now - slot.since > BATCH_SECONDS:
            numbers = [*range(slot.nth), *waiting]
        else:
            unwanted = heard.gone | heard.cancels | heard.terminates
            numbers = [nth for nth in waiting if token_at(slot.base, nth) in unwanted]
        numbers = [nth for nth in numbers if not slot.taken >> nth & 1]
        if not numbers:
            return
        with self.table.hand_over(slot.index, wait=HAND_OVER_WAIT) as still:
            current = self.table.read(slot.index)
            if still and current is not None and (current.token, current.state) == (slot.token, HELD):
                self.take_out(current, numbers)

    def take_out(self, slot: Slot, numbers: Sequence[int]) -> None:
        """Told from here; in the spool first, so that a heartbeat between the two lists them still.

        One that is over without an end beside it had no room for it: its owner has spooled it. When the spool takes
        not all, what it took is taken out: it is delivered whatever becomes of the rest.
        """
        batch, ends = self.table.batch(slot.index), self.table.ends(slot.index)
        untold = {
            nth: untold_of(claim_of(batch[nth]), ends[nth]) if nth in ends else Untold(claim_of(batch[nth]))
            for nth in numbers
            if nth in batch and (nth in ends or nth > slot.nth)
        }
        taken: Sequence[int] = []
        try:
            self.runtime.spool.put(*untold.values())
            taken = numbers
        except OSError:
            taken = [nth for nth, one in untold.items() if self.runtime.spool.holds(one.claim.token)]
            raise
        finally:
            self.table.take(slot.index, sum(1 << nth for nth in taken))
            self.delivery.hurry()

    def run_of(self, slot: Slot) -> Any:
        return (self.table.claim(slot) or {}).get("run_id")

    def ask_to_stop(self, slot: Slot) -> None:
        logger.info("Run %s is asked to stop", self.run_of(slot))
        if not processes.signal_group(slot.body, slot.body_started, signal.SIGTERM):
            processes.send_signal(slot.pid, slot.pid_started, signal.SIGUSR1)

    def kill_body(self, slot: Slot, with_process: bool) -> None:
        logger.warning("Run %s is killed", self.run_of(slot))
        in_group = processes.signal_group(slot.body, slot.body_started, signal.SIGKILL)
        if with_process or not in_group:
            self.kill_process(slot.pid, slot.pid_started)

    def kill_process(self, pid: int, start: int) -> None:
        """With what its body started; of a solo worker we are ourselves a child."""
        processes.kill_tree(pid, start, spared=[os.getpid()])

    def fence_off(self, index: int, slot: Slot | None) -> None:
        """Whatever the slot's process works on, it has lost; so no hand-over lock is needed. A result that is
        being reported changes nothing any more, and is left to find that out."""
        if slot is not None and slot.state not in (ASKED, HELD):
            return
        if slot is not None:
            self.table.request_kill(index, slot.token, "fenced", HARD, processes.boottime())
        logger.error("No heartbeat was answered in time: slot %d is killed", index)
        processes.signal_group(*self.table.raw_body(index), signal.SIGKILL)
        self.kill_process(*self.table.raw_owner(index))

    def bury(self, index: int) -> None:
        """The slot's process is dead and the slot ours."""
        try:
            processes.signal_group(*self.table.raw_body(index), signal.SIGKILL)
            with contextlib.suppress(ValueError, KeyError, TypeError):
                # What cannot be read goes back by rescue; the slot is needed.
                self.settle_batch(self.table.raw(index))
            self.table.clear(index)
        finally:
            self.table.drop_ownership(index)

    def settle_batch(self, slot: Slot) -> None:
        """What is over is told, what was at work was lost or stopped, what waited or was never heard of goes back."""
        if slot.state not in CLAIMED:
            return
        self.runtime.spool.put_unheard(*self.unheard(slot))
        ends, told = self.table.ends(slot.index), set(self.runtime.spool.tokens())
        untold = []
        for nth, details in self.table.batch(slot.index).items():
            claim = claim_of(details)
            if slot.taken >> nth & 1 or claim.token in told:
                continue
            if nth in ends:
                untold.append(untold_of(claim, ends[nth]))
            elif slot.state == ASKED or nth > slot.nth:
                untold.append(Untold(claim))
            else:
                untold.append(self.untold_of_stopped(slot, claim))
        self.runtime.spool.put(*untold)
        self.delivery.hurry()

    def unheard(self, slot: Slot) -> list[Unheard]:
        """What it asked for and may have got: it died before it read the answer, or before it had written it down."""
        asks = [(slot.next_base, slot.next_count)]
        if slot.state == ASKED and not self.table.has_details(slot.index):
            asks.append((slot.base, slot.count))
        # One that began before it was upgraded does not say who it is.
        asks = asks if slot.asker != NOBODY else []
        return [unheard_now(slot.asker, base, count) for base, count in asks if count]

    def untold_of_stopped(self, slot: Slot, claim: Claim) -> Untold:
        request = self.table.kill_request(slot.index)
        reason = request.reason if request.token == claim.token else ""
        if reason == "given_back":
            return Untold(claim)
        outcome = classified(self.outcome_of(slot, reason, claim.timeout), claim.retry)
        verdict = decide(outcome, claim.attempt, claim.retry, losses=claim.losses)
        return Untold(claim, outcome, verdict, log_is_open=True)

    def outcome_of(self, slot: Slot, reason: str, timeout: float) -> Outcome:
        finished_at = now_utc()
        started_at = finished_at.fromtimestamp(slot.started_at, finished_at.tzinfo)
        if reason in (TIMEOUT, CANCELLED):
            return stopped_outcome(reason, timeout, started_at, finished_at)
        line = "The process that ran it was killed: " + {
            "fenced": "the worker was cut off from the ledger.",
            "gone": "the claim was no longer its own.",
        }.get(reason, "not by the worker.")
        return stated_failure(WORKER_LOST, "WorkerLost", line, started_at, finished_at)

    # The worker as a whole.

    def any_claim(self) -> bool:
        return any(state in CLAIMED for state in self.table.states())

    def parent_lives(self) -> bool:
        """A guard that cannot look, as with too many open files, takes it for living."""
        try:
            return processes.alive(*self.table.parent)
        except OSError:
            logger.exception("A look at the worker failed")
            return True

    def watch_parent(self, now: float) -> None:
        """A worker that hangs for as long as a lease is treated as lost: it begins anew when it wakes."""
        if not self.parent_hangs():
            self._hung_since = 0.0
            self.heartbeat.suspended = False
            return
        self._hung_since = self._hung_since or now
        if not self.heartbeat.suspended and now - self._hung_since > self.config.lease - self.config.margin:
            logger.error("The worker hangs: what it runs is killed")
            self.heartbeat.suspended = self.heartbeat.begin_anew = True

    def parent_hangs(self) -> bool:
        """Stopped; or, where it is its own feed, without turning its loop and without a child left that could work."""
        pid, _ = self.table.parent
        if processes.stopped(pid):
            return True
        if self.table.feed != pid:
            return False
        still = self._parents_loop.look(self.table.feed_turned_at) > self.config.lease
        return still and not any(child != os.getpid() for child, _ in processes.children(pid))

    def notice_changes(self) -> None:
        """The ledger is told at once when the worker fills, empties or leaves."""
        full = FREE not in self.table.states()
        if full != self._was_full or self.table.draining != self._was_draining:
            self._was_full, self._was_draining = full, self.table.draining
            self.heartbeat.hurry()

    def feed_on_demand(self, now: float) -> None:
        since = self.heartbeat.heard.work_since
        self.feed_keeper.replace_if_hung()
        self.heartbeat.feeding = self.feed_keeper.is_running()
        if (
            self.config.without_permits
            or self.config.keeps_feed
            or not self.config.app
            or self.feed_keeper.is_running()
        ):
            return
        if not since or self.table.draining or now - self._feed_started < FEED_RESTART:
            return
        # A worker whose event loop turns serves what the answers name; it gets more time for it.
        loop_hangs = now - self.table.looped_at > FEED_PATIENCE
        if now - since > (FEED_PATIENCE if loop_hangs else LONGEST_FEED_PATIENCE):
            logger.warning("Permits do not come through: runs are fetched from the ledger instead")
            self._feed_started = now
            self.feed_keeper.start()

    def last_words(self) -> None:
        """The worker is gone or going: nothing runs on, every end is told, the ledger knows we left."""
        logger.info("The worker is leaving")
        self.end_everything()
        self.delivery.finish()
        self.delivery.join(LAST_WORDS_SECONDS)
        while not self.delivery.deliver_all() and not self.table.fenced:
            time.sleep(TICK)
        self.heartbeat.finish()
        self.heartbeat.join(LAST_WORDS_SECONDS)
        self.leave()

    def end_everything(self) -> None:
        until = time.monotonic() + LAST_WORDS_SECONDS
        while self.any_claim() and time.monotonic() < until:
            for index, state in enumerate(self.table.states()):
                if state in CLAIMED and self.table.take_ownership(index):
                    self.bury(index)
                elif state in CLAIMED:
                    processes.signal_group(*self.table.raw_body(index), signal.SIGKILL)
                    self.kill_process(*self.table.raw_owner(index))
            time.sleep(TICK)

    def settle(self) -> bool:
        """For a worker that ended together with its guard: what it left is told by another's."""
        self.end_everything()
        until = time.monotonic() + ASK_SECONDS + LAST_WORDS_SECONDS
        while not (told := self.delivery.deliver_all()) and time.monotonic() < until:
            time.sleep(TICK)
        return told and self.leave()

    def leave(self) -> bool:
        """False: there is still something to tell."""
        if in_hand(self.runtime).tokens:
            logger.error("Results could not be told; they stay in %s", self.runtime.folder)
            return False
        try:
            self.runtime.open_ledger().leave(self.table.incarnation)
        except Exception as error:
            logger.warning("The ledger does not know that we left: %s", error)
        shutil.rmtree(self.runtime.folder, ignore_errors=True)
        return True


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", f"{__package__}.guard", "--dir", str(folder)]


def main() -> None:
    parser = argparse.ArgumentParser(description="The guard of a Beatkeeper worker; the worker starts it.")
    parser.add_argument("--dir", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s beatkeeper guard: %(message)s")
    # A terminal's Ctrl-C and a service's SIGTERM go to the worker; the guard leaves after it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    runtime = Runtime(arguments.dir)
    runtime.table.guard = os.getpid()
    Guard(runtime).run()


if __name__ == "__main__":
    main()
