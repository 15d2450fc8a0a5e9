"""Signs a call, so that its receiver knows who made it and that nobody changed or repeated it (docs/targets.md).

    Beatkeeper-Signature: t=1766059200,v1=<hex>,v1=<hex>

Each `v1` is the HMAC-SHA256 of `t`, method, path with query, and body, with a newline between them, under one of the
keys that are valid now. During a rotation there are two, and a receiver that knows either accepts the call.
"""

import hashlib
import hmac
from collections.abc import Sequence

HEADER = "Beatkeeper-Signature"
MOST_KEYS = 2


def signature(keys: Sequence[bytes], at: int, method: str, path: str, body: bytes) -> str:
    message = b"\n".join((str(at).encode(), method.encode(), path.encode(), body))
    return ",".join(
        [f"t={at}", *(f"v1={hmac.new(key, message, hashlib.sha256).hexdigest()}" for key in keys)]
    )


def keys_in(secret: str) -> list[bytes]:
    """A line each: the new one and, while receivers change over, the old one."""
    return [line.strip().encode() for line in secret.splitlines() if line.strip()]
