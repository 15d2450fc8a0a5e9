"""Map annotated attributes onto shared memory, so that a layout is declared once."""

from __future__ import annotations

import ctypes
from operator import attrgetter
from typing import Any, TypeVar
from uuid import UUID

Record = TypeVar("Record", bound=ctypes.Structure)

WORD_TYPES = {"int": ctypes.c_uint64, "float": ctypes.c_double}
LOW_WORD = 0xFFFFFFFFFFFFFFFF


def shared_record(record: type[Record]) -> type[Record]:
    """Lay out the annotations of a structure in their order: `int` and `float` one word each, `UUID` two words.

    A word is aligned and written at once, so a reader never sees half of one. It may see half a UUID: whatever needs
    it whole is read under a sequence number.
    """
    fields: list[tuple[str, Any]] = []
    for name, kind in record.__annotations__.items():
        if kind == "UUID":
            fields += [(f"{name}_high", ctypes.c_uint64), (f"{name}_low", ctypes.c_uint64)]
            setattr(record, name, _uuid_property(f"{name}_high", f"{name}_low"))
        else:
            fields.append((name, WORD_TYPES[kind]))
    record._fields_ = fields
    return record


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
