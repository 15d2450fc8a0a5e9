"""Logs of a worker that cannot reach the platform's store: written here, and sent there with the result.

An ended attempt points to its own open file. The lines are sent with its result, even if that is sent hours later from
the spool. The lines of running attempts are sent as they come (guard/log_follower.py).
"""

from __future__ import annotations

import gzip
from uuid import UUID

from ..outcomes import LogPointer
from .folder import FolderLogStore

# Points to a log that was not sent yet.
HERE = LogPointer("here", 0, 0)


class RemoteLogStore(FolderLogStore):
    """Keep the open files of this machine. Sealed logs are in the platform's store and are not read from here."""

    def seal(self, run: UUID, claim_seq: int, tenant: str, incarnation: UUID) -> LogPointer | None:
        return HERE if self.read_open(run, claim_seq) else None

    def member(self, run: UUID, claim_seq: int) -> bytes:
        """Return the lines as the platform stores them; empty: there are none any more."""
        lines = self.read_whole(run, claim_seq)
        return gzip.compress(lines, 6) if lines else b""
