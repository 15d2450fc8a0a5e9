"""The layout of shared memory, as it is declared."""

from __future__ import annotations

import ctypes
from uuid import UUID, uuid4

import pytest

from scheduler_project.sdk.shared.header import NIL, WorkerHeader
from scheduler_project.sdk.shared.record import shared_record
from scheduler_project.sdk.shared.slot_record import SlotRecord
from scheduler_project.sdk.shared.slots import CLAIMS_OFFSET, HEADER_SIZE


@shared_record
class Sample(ctypes.Structure):
    __slots__ = ()

    count: int
    token: UUID
    at: float


def test_each_field_has_whole_words_in_the_order_of_the_declaration() -> None:
    memory = bytearray(ctypes.sizeof(Sample))
    sample = Sample.from_buffer(memory)
    sample.count, sample.token, sample.at = 7, UUID(int=(1 << 64) + 2), 1.5
    words = memoryview(memory).cast("Q")
    assert (words[0], words[1], words[2]) == (7, 1, 2)
    assert memoryview(memory).cast("d")[3] == 1.5 and len(words) == 4
    assert sample.token == UUID(int=(1 << 64) + 2)


def test_a_name_that_is_not_declared_cannot_be_written() -> None:
    """A plain structure would keep it for this process alone, and no other would ever read it."""
    with pytest.raises(AttributeError):
        setattr(Sample(), "cuont", 1)  # noqa: B010


def test_header_and_slot_fit_the_room_before_what_follows_them() -> None:
    assert ctypes.sizeof(WorkerHeader) <= HEADER_SIZE
    assert ctypes.sizeof(SlotRecord) <= CLAIMS_OFFSET


def test_a_half_written_incarnation_is_not_read() -> None:
    header = WorkerHeader()
    header.incarnation = before = uuid4()
    assert header.incarnation == before and not header.sequence & 1
    header.sequence |= 1
    assert header.incarnation == NIL


def test_a_writer_that_died_half_way_leaves_the_number_to_the_next_one() -> None:
    header = WorkerHeader()
    header.sequence |= 1
    header.incarnation = after = uuid4()
    assert header.incarnation == after and not header.sequence & 1
