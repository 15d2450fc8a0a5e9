"""Map annotated attributes onto shared memory, so that a layout is declared once."""

from __future__ import annotations

import ctypes
from operator import attrgetter
from typing import Any, TypeVar
from uuid import UUID

Record = TypeVar("Record", bound=ctypes.Structure)

WORD_TYPES = {"int": ctypes.c_uint64, "float": ctypes.c_double}
LOW_WORD = 0xFFFFFFFFFFFFFFFF
# A pid with its start time, which together name one process, or the leader of a process group. (0, 0): none.
Process = tuple[int, int]


def shared_record(record: type[Record]) -> type[Record]:
    """Lay out the annotations in their order: `int` and `float` one word each, `UUID` and `Process` two words.

    A word is aligned and written at once, so a reader never sees half of one. It may see half a UUID: whatever needs
    it whole is read under a sequence number.
    """
    fields: list[tuple[str, Any]] = []
    for name, kind in record.__annotations__.items():
        if kind in PAIRS:
            pair = (f"{name}_0", f"{name}_1")
            fields += [(word, ctypes.c_uint64) for word in pair]
            setattr(record, name, PAIRS[kind](*pair))
        else:
            fields.append((name, WORD_TYPES[kind]))
    record._fields_ = fields
    return record


def _process_property(pid_name: str, started_name: str) -> property:
    def write(record: ctypes.Structure, value: Process) -> None:
        # The start time goes first: a guard that sees the pid must find the start time beside it, or a living worker
        # would pass for dead and its slots would be settled by another guard.
        setattr(record, started_name, value[1])
        setattr(record, pid_name, value[0])

    return property(attrgetter(pid_name, started_name), write)


def _uuid_property(high_name: str, low_name: str) -> property:
    words = attrgetter(high_name, low_name)

    def read(record: ctypes.Structure) -> UUID:
        high, low = words(record)
        return UUID(int=(high << 64) | low)

    def write(record: ctypes.Structure, value: UUID) -> None:
        number = value.int
        setattr(record, high_name, number >> 64)
        setattr(record, low_name, number & LOW_WORD)

    return property(read, write)


PAIRS = {"UUID": _uuid_property, "Process": _process_property}
