"""Sign a call, so that its receiver can check who sent it and that it is neither changed nor repeated.

    Beatkeeper-Signature: t=1766059200,v1=<hex>,v1=<hex>

Each `v1` is the HMAC-SHA256 of `t`, method, path with query, and body, with a newline between them, under one of the
keys that are valid now. During a rotation there are two, and a receiver that knows either accepts the call.
"""

import hashlib
import hmac
from collections.abc import Sequence

SIGNATURE = "Beatkeeper-Signature"
MAX_KEYS = 2


def signature(keys: Sequence[bytes], at: int, method: str, path: str, body: bytes) -> str:
    message = b"\n".join((str(at).encode(), method.encode(), path.encode(), body))
    digests = [hmac.new(key, message, hashlib.sha256).hexdigest() for key in keys]
    return ",".join([f"t={at}", *(f"v1={digest}" for digest in digests)])


def keys_in(secret: str) -> list[bytes]:
    """Return the keys, one per line: the new one, and the old one while receivers change over."""
    return [line.strip().encode() for line in secret.splitlines() if line.strip()]
