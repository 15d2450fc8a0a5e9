"""A process' side of the slot table: the slot it owns, and the moves of the claim in it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

from . import processes
from .ledger import token_at
from .slot_header import NOBODY
from .slots import ASKED, FOREIGN, FREE, HELD, NOT_KILLED, REPORTING, SlotTable


class Hand:
    """The one slot this process owns. A process executes one body at a time, so it needs no more."""

    def __init__(self, table: SlotTable, index: int) -> None:
        self.table = table
        self.index = index
        self.token = self.base = NOBODY
        self.state = FREE
        self._started = processes.started(os.getpid())

    @classmethod
    def take(cls, table: SlotTable) -> Hand | None:
        """None: no slot is free. A slot whose owner died with a claim is the guard's to clear, not ours."""
        for index in range(table.size):
            if table.state(index) != FREE or not table.take_ownership(index):
                continue
            if table.state(index) == FREE:
                return cls(table, index)
            table.drop_ownership(index)
        return None

    def ask(self, base: UUID, count: int = 1, asker: UUID = NOBODY) -> None:
        """Written before the claims are asked for, so that every heartbeat lists them from then on."""
        self.token = self.base = base
        with self._moving(ASKED) as at:
            self.table.put_owner(at, os.getpid(), self._started)
            self.table.put_asker(at, asker)
            self.table.put_claim(at, base, 0, 0.0)
            self.table.put_batch(at, base, count)
            self.table.put_body(at, 0, 0)

    def receive(self, base: UUID, details: Sequence[dict[str, Any]]) -> None:
        """The claims that were asked for: none of them is begun."""
        self.token = self.base = base
        last = max(UUID(one["token"]).int for one in details)
        with self._moving(ASKED) as at:
            self.table.put_owner(at, os.getpid(), self._started)
            self.table.put_claim(at, base, 0, 0.0)
            self.table.put_batch(at, base, last - base.int + 1)
            self.table.put_details(at, details)

    def begin(
        self, nth: int, claim_seq: int, deadline: float, is_spooled: Callable[[], bool] = lambda: False
    ) -> bool:
        """The next claim of the batch is at work. False: the guard has taken it, or died between the two writes of
        taking it."""
        with self.table.hand_over(self.index):
            if self.table.taken(self.index) >> nth & 1 or is_spooled():
                return False
            self.token = token_at(self.base, nth)
            with self.table.writing(self.index) as at:
                self.table.put_state(at, HELD)
                self.table.put_claim(at, self.token, claim_seq, deadline)
                self.table.put_body(at, 0, 0)
            self.state = HELD
        return True

    def ended(self, nth: int, end: dict[str, Any]) -> bool:
        """What came of the claim at work outlives us from here on. False: there is no room to write it down."""
        # A guard that began before an upgrade reads it by this key.
        line = json.dumps({"place": nth, **end}, separators=(",", ":")).encode() + b"\n"
        with self.table.hand_over(self.index):
            return self.table.add_end(self.index, line)

    def occupy(self) -> None:
        with self._moving(FOREIGN) as at:
            self.table.put_owner(at, os.getpid(), self._started)

    def body(self, group: int, leader_started: int) -> None:
        with self.table.writing(self.index) as at:
            self.table.put_body(at, group, leader_started)

    def reporting(self, next_base: UUID = NOBODY, next_count: int = 0, asker: UUID = NOBODY) -> int:
        """The batch is told, and perhaps another one asked for. Returns what the guard has taken of it."""
        with self._moving(REPORTING) as at:
            self.table.put_asker(at, asker)
            self.table.put_next(at, next_base, next_count)
            return self.table.taken(self.index)

    def empty(self) -> None:
        self.state = FREE
        self.token = self.base = NOBODY
        with self.table.hand_over(self.index):
            self.table.clear(self.index)

    def abandon(self) -> None:
        """What is in the slot is the guard's to tell and to give back, as if we had died."""
        self.state = FREE
        self.token = self.base = NOBODY
        self.table.drop_ownership(self.index)

    def release(self) -> None:
        if self.state != FREE:
            self.empty()
        self.table.drop_ownership(self.index)

    @property
    def kill_reason(self) -> str:
        """Why the guard wants the run in hand ended; empty: it does not."""
        request = self.table.kill_request(self.index)
        return request.reason if request.stage != NOT_KILLED and request.token == self.token else ""

    @contextlib.contextmanager
    def _moving(self, state: int) -> Iterator[int]:
        with self.table.hand_over(self.index), self.table.writing(self.index) as at:
            self.table.put_state(at, state)
            self.state = state
            yield at
