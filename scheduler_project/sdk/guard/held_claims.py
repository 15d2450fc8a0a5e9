"""The claims that a worker holds, as its heartbeats list them."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from ..ledger.interface import MAX_HELD
from ..outcomes import CANCELLED
from ..shared.folder import Runtime
from ..shared.header import NIL
from ..shared.slot_record import CLAIMED, FOREIGN, HELD, NOT_KILLED
from ..shared.slots import SlotTable
from ..shared.spool import Spool


@dataclass(frozen=True)
class HeldClaims:
    """The claims in the slots and the spool at one moment."""

    tokens: frozenset[UUID] = frozenset()
    # Those of the tokens whose claims were made for certain.
    made: frozenset[UUID] = frozenset()
    busy: int = 0
    foreign: int = 0


def held_claims(runtime: Runtime) -> HeldClaims:
    """Collect the tokens that the ledger must not take for lost."""
    # Slots first, unconfirmed claims after them, the spool last: claims move in this order, and a claim that moves
    # while we look is found in its old place or in its new one. The other way round a beat could miss it, and the
    # ledger would give a held claim to another worker.
    tokens, made, busy, foreign = set(), set(), 0, 0
    for index in range(runtime.table.size):
        slot = runtime.table.read(index)
        if slot is None:
            # Its writer stopped half way: what stands there now is the best there is.
            tokens.update(runtime.table.raw(index).tokens())
            busy += 1
        elif slot.state in CLAIMED:
            busy += 1
            tokens.update(slot.tokens())
            if slot.state == HELD:
                made.update(slot.tokens())
        elif slot.state == FOREIGN:
            foreign += 1
    tokens.update(*(one.tokens for one in runtime.spool.unconfirmed()))
    tokens.update(runtime.spool.tokens())
    return HeldClaims(frozenset(tokens - {NIL}), frozenset(made), busy, foreign)


def tokens_to_list(tokens: frozenset[UUID], spool: Spool) -> list[UUID]:
    """Choose as many tokens as a beat may list: all that slots hold, then the lowest of the spool.

    The others follow when those are delivered.
    """
    spooled = tokens & set(spool.tokens()) if len(tokens) > MAX_HELD else frozenset[UUID]()
    held = sorted(tokens - spooled)
    return held + sorted(spooled)[: max(0, MAX_HELD - len(held))]


def stopping_claims(table: SlotTable) -> list[UUID]:
    """Return the claims whose body was asked to stop because the run is cancelled."""
    found = []
    for index, state in enumerate(table.states()):
        request = table.records[index].kill_request
        slot = table.read(index) if state == HELD and request.reason == CANCELLED else None
        if slot is not None and slot.token == request.token and request.stage != NOT_KILLED:
            found.append(slot.token)
    return found
