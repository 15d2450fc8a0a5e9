"""The token with which a target that answered 202 reports the outcome of a run later. It is good for one claim.

It follows from the claim's own token, so the platform knows it before the answer to the call is reported: a callback
may be faster than that. Afterwards only its digest is kept.
"""

from __future__ import annotations

import base64
import hashlib
from uuid import UUID

PREFIX = "bkc_"


def token_of(claim_token: UUID, run: UUID, claim_seq: int) -> str:
    """Hash the claim's token: those of one batch follow each other, and one must not reveal the next."""
    content = b"beatkeeper callback" + claim_token.bytes + run.bytes + claim_seq.to_bytes(8, "big")
    return PREFIX + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "backslashreplace")).hexdigest()
