"""A process' side of the slot table: the slot it owns, and the moves of the claim in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from .slots import ASKED, FOREIGN, FREE, HELD, NOBODY, NOT_KILLED, REPORTING, SlotTable


class Hand:
    """The one slot this process owns. A process executes one body at a time, so it needs no more."""

    def __init__(self, table: SlotTable, index: int) -> None:
        self.table = table
        self.index = index
        self.token = NOBODY
        self.state = FREE

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

    def ask(self, token: UUID) -> None:
        """Written before the claim is asked for, so that every heartbeat lists it from then on."""
        self.token = token
        with self._moving(ASKED) as at:
            self.table.put_owner(at, os.getpid())
            self.table.put_claim(at, token, 0, 0.0)
            self.table.put_body(at, 0, 0)

    def hold(self, claim_seq: int, deadline: float, details: dict[str, Any]) -> None:
        with self._moving(HELD) as at:
            self.table.put_claim(at, self.token, claim_seq, deadline)
            self.table.put_details(at, details)

    def occupy(self) -> None:
        with self._moving(FOREIGN) as at:
            self.table.put_owner(at, os.getpid())

    def body(self, group: int, leader_started: int) -> None:
        with self.table.writing(self.index) as at:
            self.table.put_body(at, group, leader_started)

    def reporting(self) -> None:
        with self._moving(REPORTING):
            pass

    def empty(self) -> None:
        self.state = FREE
        self.token = NOBODY
        with self.table.hand_over(self.index):
            self.table.clear(self.index)

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
            yield at
        self.state = state
