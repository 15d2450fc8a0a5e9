"""The slot that a process owns, and the moves of the claims in it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

from ..ledger.interface import token_at
from ..process import processes
from .header import NIL
from .slot_record import FOREIGN, FREE, HELD, NOT_KILLED, REPORTING, REQUESTED, SlotRecord
from .slots import SlotTable


class OwnedSlot:
    """The one slot that this process owns. A process executes one body at a time, so it needs no more."""

    def __init__(self, table: SlotTable, index: int) -> None:
        self.table = table
        self.index = index
        self.record = table.records[index]
        self.token = self.base = NIL
        self.state = FREE
        self._owner = processes.identity(os.getpid())

    @classmethod
    def take(cls, table: SlotTable) -> OwnedSlot | None:
        """Take a free slot; None if there is none. The slot of an owner that died with a claim is left to the guard."""
        for index in range(table.size):
            if table.records[index].state != FREE or not table.take_ownership(index):
                continue
            # Read again under the lock: its owner may have died with a claim after the first look.
            if table.records[index].state == FREE:
                return cls(table, index)
            table.drop_ownership(index)
        return None

    def request(self, base: UUID, count: int = 1, requested_by: UUID = NIL) -> None:
        """Name the claims about to be requested.

        It is written before the request is sent, so that every heartbeat lists them from the moment they may exist.
        """
        self.token = self.base = base
        with self._moving(REQUESTED) as record:
            record.requested_by = requested_by
            record.set_batch(base, count)
            record.body = (0, 0)

    def receive(self, base: UUID, claims: Sequence[dict[str, Any]]) -> None:
        """Write down the claims that were granted, none of them begun."""
        self.token = self.base = base
        last = max(UUID(claim["token"]).int for claim in claims)
        with self._moving(REQUESTED) as record:
            record.set_batch(base, last - base.int + 1)
            self.table.write_claims(self.index, claims)

    def begin(
        self, nth: int, claim_seq: int, deadline: float, is_spooled: Callable[[], bool] = lambda: False
    ) -> bool:
        """Put a claim of the batch to work; return False if the guard has taken it.

        The guard spools a claim and then marks it as taken. It may die between the two, so both are looked at.
        """
        with self.table.hand_over(self.index):
            if self.record.taken >> nth & 1 or is_spooled():
                return False
            self.token = token_at(self.base, nth)
            with self.record.writing():
                self.record.set_state(HELD)
                self.record.set_claim(self.token, claim_seq, deadline)
                self.record.body = (0, 0)
            self.state = HELD
        return True

    def complete(self, nth: int, completion: dict[str, Any]) -> bool:
        """Write down what came of the claim at work, so that it outlives this process; False if there is no room."""
        line = json.dumps({"nth": nth, **completion}, separators=(",", ":")).encode() + b"\n"
        # The guard reads the completions under this lock when it takes claims out of the batch: it must not miss one.
        with self.table.hand_over(self.index):
            return self.table.add_completion(self.index, line)

    def occupy(self) -> None:
        """Count a task of the host's as work in this slot."""
        with self._moving(FOREIGN):
            pass

    def set_body(self, group: int, leader_started: int) -> None:
        with self.record.writing():
            self.record.body = (group, leader_started)

    def start_report(self, next_base: UUID = NIL, next_count: int = 0, requested_by: UUID = NIL) -> int:
        """Name what the report requests besides; return which claims of the batch the guard has taken.

        The bits are read under the hand-over lock: from here on the guard takes none, so each result is reported
        by one of the two.
        """
        with self._moving(REPORTING) as record:
            record.requested_by = requested_by
            record.next_base, record.next_count = next_base, next_count
            return record.taken

    def abandon(self) -> None:
        """Leave what is in the slot for the guard to report and give back, as if this process had died."""
        self._forget()
        self.table.drop_ownership(self.index)

    def release(self) -> None:
        # A fork that a task left to itself has this object too, and not the slot.
        if self._owner[0] != os.getpid():
            return
        if self.state != FREE:
            self._forget()
            with self.table.hand_over(self.index):
                self.record.clear()
        self.table.drop_ownership(self.index)

    def _forget(self) -> None:
        self.state = FREE
        self.token = self.base = NIL

    @property
    def kill_reason(self) -> str:
        """Return why the guard wants the run at work ended; empty if it does not."""
        request = self.record.kill_request
        return request.reason if request.stage != NOT_KILLED and request.token == self.token else ""

    @contextlib.contextmanager
    def _moving(self, state: int) -> Iterator[SlotRecord]:
        """Change the state and what belongs to it, while the guard must leave the slot alone."""
        # The lock keeps a kill of the claim before from hitting the next one; the sequence number keeps readers,
        # which take no lock, from seeing both at once.
        with self.table.hand_over(self.index), self.record.writing():
            self.record.set_state(state)
            self.record.owner = self._owner
            self.state = state
            yield self.record
