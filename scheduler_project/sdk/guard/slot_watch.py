"""Watch one slot of a worker: enforce its limits, stop or kill its body, report what a dead owner left.

- Without an answered heartbeat in time, whatever holds a claim is killed before anybody else may take it over. A slot
  that runs a task of the host's is left alone.
- At a time limit and on a cancel the body is asked to stop first (SIGUSR1 to the process, SIGTERM to a body's group)
  and killed after a grace; a cancel that terminates kills at once.
- A body whose claim is no longer ours is killed at once.
- A claim whose process died is reported, with the log as far as it came.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Sequence

from ..ledger.interface import BATCH_SECONDS, Claim, token_at
from ..outcomes import CANCELLED, TIMEOUT, Outcome, now_utc, stopped_outcome, worker_lost
from ..process import processes
from ..retries import classified, verdict_on
from ..shared.claim_record import unpack_claim
from ..shared.folder import Runtime
from ..shared.slot_record import (
    CLAIMED,
    FOREIGN,
    HARD,
    HELD,
    NOT_KILLED,
    REPORTING,
    REQUESTED,
    SOFT,
    Slot,
)
from ..shared.spool import PendingReport, pending_report, unconfirmed_claim
from .delivery import Delivery
from .heartbeat import HeartbeatThread

logger = logging.getLogger(__name__)

HAND_OVER_WAIT = 0.2
HUNG_IN_A_REQUEST_SECONDS = 60.0
# These kill the process too where the body has a group of its own: the process must not report.
KILL_PROCESS_REASONS = ("gone", "given_back", "hung")


class SlotWatch:
    def __init__(self, runtime: Runtime, heartbeat: HeartbeatThread, delivery: Delivery) -> None:
        self.runtime, self.heartbeat, self.delivery = runtime, heartbeat, delivery
        self.table = runtime.table

    def watch(self, index: int, now: float) -> None:
        """Look at a slot; a full disk, or a slot that cannot be read, must not end the watch over the others."""
        try:
            self.look_at(index, now)
        except Exception:
            logger.exception("Slot %d could not be checked", index)

    def look_at(self, index: int, now: float) -> None:
        # The kernel gives the owner's byte to us only when the owner is dead.
        if self.table.take_ownership(index):
            self.reclaim(index)
            return
        if self.table.records[index].state == FOREIGN:
            return
        slot = self.table.read(index)
        if (
            slot is not None
            and slot.state in (REQUESTED, REPORTING)
            and now - slot.since > HUNG_IN_A_REQUEST_SECONDS
        ):
            # Also behind the fence: the worker does not register anew before every claim is gone.
            self.kill(slot, "hung", HARD, slot.state)
        if self.table.header.fenced:
            self.fence_off(index, slot)
        elif slot is not None and slot.state == HELD:
            self.enforce(slot, now)
            self.give_back_waiting(slot, now)

    # A body that must not go on.

    def enforce(self, slot: Slot, now: float) -> None:
        header, response = self.table.header, self.heartbeat.last_response
        request = self.table.records[slot.index].kill_request
        # A request that names another token was for a run before.
        stage = request.stage if request.token == slot.token else NOT_KILLED
        if slot.token in response.gone:
            self.kill(slot, "gone", HARD)
        elif header.draining and now >= header.drain_until:
            self.kill(slot, "given_back", HARD)
        elif stage != HARD and slot.token in response.terminates:
            self.kill(slot, CANCELLED, HARD)
        elif stage == NOT_KILLED:
            if slot.token in response.cancels:
                self.kill(slot, CANCELLED, SOFT)
            elif slot.deadline and now >= slot.deadline:
                self.kill(slot, TIMEOUT, SOFT)
        elif now >= request.at + self.runtime.config.grace:
            self.kill(slot, request.reason, HARD, insist=stage == HARD)

    def kill(self, slot: Slot, reason: str, stage: int, state: int = HELD, insist: bool = False) -> None:
        """End the body of this claim and no other.

        A body in a group of its own is killed there, and its process reports; `insist` kills that process too.
        """
        # The hand-over lock holds the slot still between the check and the kill. Without it the owner could report and
        # begin its next run in between, and the kill would hit that one.
        with self.table.hand_over(slot.index, wait=HAND_OVER_WAIT) as still:
            current = self.table.read(slot.index)
            if not still or current is None or (current.token, current.state) != (slot.token, state):
                return
            # Before the signal: the handler in the process looks here for the reason.
            self.table.records[slot.index].request_kill(slot.token, reason, stage, processes.boottime())
            run_id = (self.table.claim(current) or {}).get("run_id")
            if stage == SOFT:
                logger.info("Run %s is asked to stop", run_id)
                if not processes.signal_group(*current.body, signal.SIGTERM):
                    processes.send_signal(*current.owner, signal.SIGUSR1)
            else:
                logger.warning("Run %s is killed", run_id)
                in_group = processes.signal_group(*current.body, signal.SIGKILL)
                if insist or reason in KILL_PROCESS_REASONS or not in_group:
                    # But not the guard, a child of a solo worker itself.
                    processes.kill_tree(*current.owner, spared=[os.getpid()])
        if reason == CANCELLED:
            # The ledger shows that the worker acts on the cancel.
            self.heartbeat.wake()

    def kill_owner(self, index: int) -> None:
        processes.signal_group(*self.table.records[index].body, signal.SIGKILL)
        processes.kill_tree(*self.table.records[index].owner, spared=[os.getpid()])

    def fence_off(self, index: int, slot: Slot | None) -> None:
        """Kill what works on a claim behind the fence.

        No hand-over lock is needed: all that the process may work on is lost, whichever claim it is at. A result that
        is being reported changes nothing any more, and its process finds that out.
        """
        if slot is not None and slot.state not in (REQUESTED, HELD):
            return
        if slot is not None:
            self.table.records[index].request_kill(slot.token, "fenced", HARD, processes.boottime())
        logger.error("No heartbeat was answered in time: slot %d is killed", index)
        self.kill_owner(index)

    # A batch whose owner lives.

    def give_back_waiting(self, slot: Slot, now: float) -> None:
        """Give back what waits behind a long run, and what is cancelled or gone before it is begun."""
        if slot.count == 1:
            return
        response = self.heartbeat.last_response
        waiting = range(slot.nth + 1, slot.count)
        if now - slot.since > BATCH_SECONDS:
            numbers = [*range(slot.nth), *waiting]
        else:
            unwanted = response.gone | response.cancels | response.terminates
            numbers = [nth for nth in waiting if token_at(slot.base, nth) in unwanted]
        numbers = [nth for nth in numbers if not slot.taken >> nth & 1]
        if not numbers:
            return
        # Under the lock the owner neither begins one of them nor reports: each claim has one of us to report it.
        with self.table.hand_over(slot.index, wait=HAND_OVER_WAIT) as still:
            current = self.table.read(slot.index)
            if still and current is not None and (current.token, current.state) == (slot.token, HELD):
                self._take_out(current, numbers)

    def _take_out(self, slot: Slot, numbers: Sequence[int]) -> None:
        """Move claims from the batch to the spool.

        One that is over without a completion beside it had no room for it: its owner has spooled it. When the spool
        does not take all, what it took is taken out: it is delivered whatever becomes of the rest.
        """
        batch, completions = self.table.batch(slot.index), self.table.completions(slot.index)
        pending = {
            nth: pending_report(unpack_claim(batch[nth]), completions[nth])
            if nth in completions
            else PendingReport(unpack_claim(batch[nth]))
            for nth in numbers
            if nth in batch and (nth in completions or nth > slot.nth)
        }
        taken: Sequence[int] = []
        try:
            # Into the spool first, out of the batch after: a heartbeat between the two lists the claims all the same,
            # and an owner that finds us dead between the two looks into the spool before it begins one.
            self.runtime.spool.put(*pending.values())
            taken = numbers
        except OSError:
            taken = [nth for nth, one in pending.items() if self.runtime.spool.holds(one.claim.token)]
            raise
        finally:
            self.table.records[slot.index].taken |= sum(1 << nth for nth in taken)
            self.delivery.wake()

    # A slot whose owner is dead.

    def reclaim(self, index: int) -> None:
        """Report what a dead owner left, and free its slot, which is ours now."""
        try:
            processes.signal_group(*self.table.records[index].body, signal.SIGKILL)
            with contextlib.suppress(ValueError, KeyError, TypeError):
                # Claims that cannot be read go back by recovery; the slot is needed.
                self._spool_batch(self.table.raw(index))
            # After the spool: a guard that dies in between leaves the slot to the next one, which finds in the spool
            # what was put there.
            self.table.records[index].clear()
        finally:
            self.table.drop_ownership(index)

    def _spool_batch(self, slot: Slot) -> None:
        """Spool results that were not reported, a failure for the run at work, and the rest to be given back."""
        if slot.state not in CLAIMED:
            return
        # What the owner requested and may have got: it died before it had written the response down.
        requests = [(slot.next_base, slot.next_count)]
        if slot.state == REQUESTED and not slot.claims_length:
            requests.append((slot.base, slot.count))
        self.runtime.spool.put_unconfirmed(
            *(unconfirmed_claim(slot.requested_by, base, count) for base, count in requests if count)
        )
        completions, spooled = self.table.completions(slot.index), set(self.runtime.spool.tokens())
        pending = []
        for nth, packed in self.table.batch(slot.index).items():
            claim = unpack_claim(packed)
            if slot.taken >> nth & 1 or claim.token in spooled:
                continue
            if nth in completions:
                pending.append(pending_report(claim, completions[nth]))
            elif slot.state == REQUESTED or nth > slot.nth:
                pending.append(PendingReport(claim))
            else:
                pending.append(self._report_of_stopped(slot, claim))
        self.runtime.spool.put(*pending)
        self.delivery.wake()

    def _report_of_stopped(self, slot: Slot, claim: Claim) -> PendingReport:
        request = self.table.records[slot.index].kill_request
        reason = request.reason if request.token == claim.token else ""
        if reason == "given_back":
            return PendingReport(claim)
        outcome = classified(self._outcome_of_stopped(slot, reason, claim.timeout), claim.retry)
        verdict = verdict_on(outcome, claim.attempt, claim.retry, losses=claim.losses)
        return PendingReport(claim, outcome, verdict, log_is_open=True)

    def _outcome_of_stopped(self, slot: Slot, reason: str, timeout: float) -> Outcome:
        finished_at = now_utc()
        started_at = finished_at.fromtimestamp(slot.started_at, finished_at.tzinfo)
        if reason in (TIMEOUT, CANCELLED):
            return stopped_outcome(reason, timeout, started_at, finished_at)
        line = "The process that ran it was killed: " + {
            "fenced": "the worker was cut off from the ledger.",
            "gone": "the claim was no longer its own.",
        }.get(reason, "not by the worker.")
        return worker_lost(line, started_at, finished_at)
