"""Make ids. A run's id follows from its job and planned time, so a second run of that time cannot exist.

Layout of UUIDv7 (48 bits of milliseconds first), version 8: rows sort by time, and the id alone says which
daily partition holds the row. The other 74 bits are a hash.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from uuid import UUID

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MILLISECOND = timedelta(milliseconds=1)
MAX_MS = (1 << 48) - 1


def run_id(job_id: UUID, planned_at: datetime) -> UUID:
    """Return the id of the job's one run at this planned time, however it is triggered."""
    return _build(milliseconds(planned_at), b"planned", job_id.bytes)


def created_run_id(created_at: datetime, discriminator: bytes) -> UUID:
    """Return the id of an unplanned run (manual, retry): by its creation time, and a discriminator of its request."""
    return _build(milliseconds(created_at), b"created", discriminator)


def attempt_id(run: UUID, claim_seq: int) -> UUID:
    """Return the same id for the same claim, in the partition range of its run."""
    return _build(run.int >> 80, b"attempt", run.bytes + claim_seq.to_bytes(8, "big"))


def milliseconds(instant: datetime) -> int:
    if instant.tzinfo is None:
        raise ValueError("an instant needs a zone")
    whole = (instant - EPOCH) // MILLISECOND
    if not 0 <= whole <= MAX_MS:
        raise ValueError(f"{instant.isoformat()} is outside the range of ids")
    return whole


def whole_milliseconds(instant: datetime) -> datetime:
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)


def id_range(start: datetime, end: datetime) -> tuple[UUID, UUID]:
    """Return the bounds of the ids of [start, end), for partition pruning."""
    return UUID(int=milliseconds(start) << 80), UUID(int=milliseconds(end) << 80)


def _build(ms: int, kind: bytes, content: bytes) -> UUID:
    digest = int.from_bytes(blake2b(content, digest_size=10, person=kind).digest(), "big")
    value = (ms << 80) | (digest & ~(0xF << 76) & ~(0x3 << 62))
    return UUID(int=value | (0x8 << 76) | (0x2 << 62))
