"""Encrypt tenants' secrets with the keys of ENCRYPTION_KEYS: the first encrypts, each may decrypt.

A ciphertext names its tenant and secret, so a row that was copied to another tenant or name cannot be decrypted.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from .references import SecretUnreadable

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

VARIABLE = "ENCRYPTION_KEYS"
KEY_BYTES = 32
KEY_ID_LENGTH = 12
MAKE_ONE = "python -c 'import base64, os; print(base64.urlsafe_b64encode(os.urandom(32)).decode())'"

_hidden: str | None = None


class SecretBox:
    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = tuple(keys)

    def __repr__(self) -> str:
        return f"SecretBox({len(self._keys)} keys)"

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def key_ids(self) -> list[str]:
        """Return ids that distinguish the keys and reveal nothing of them; the first key encrypts."""
        return [key_id(key) for key in self._keys]

    def seal(self, tenant_id: int, name: str, value: str) -> str:
        envelope = json.dumps({"tenant": tenant_id, "name": name, "value": value})
        return self._fernet.encrypt(envelope.encode()).decode()

    def open(self, tenant_id: int, name: str, ciphertext: str) -> str:
        if not self._keys:
            raise SecretUnreadable(f"The secret {name} cannot be decrypted here: {VARIABLE} is not set")
        from cryptography.fernet import InvalidToken

        try:
            envelope = json.loads(self._fernet.decrypt(ciphertext.encode()))
        except InvalidToken:
            raise SecretUnreadable(
                f"The secret {name} cannot be decrypted here: no key of {VARIABLE} opens it"
            ) from None
        if (envelope["tenant"], envelope["name"]) != (tenant_id, name):
            raise SecretUnreadable(f"What is stored as the secret {name} was encrypted as another one")
        return str(envelope["value"])

    @cached_property
    def _fernet(self) -> MultiFernet:
        try:
            from cryptography.fernet import Fernet, MultiFernet
        except ImportError:
            raise SecretUnreadable(
                "Secrets need the package cryptography: pip install beatkeeper[db]"
            ) from None
        return MultiFernet([Fernet(key) for key in self._keys])


def key_id(key: str) -> str:
    return hashlib.sha256(b"beatkeeper key " + key.encode()).hexdigest()[:KEY_ID_LENGTH]


def read_keys(text: str) -> list[str]:
    """Read the keys; an error names a key by its position and never quotes it."""
    keys = [part.strip() for part in text.split(",") if part.strip()]
    for number, key in enumerate(keys, start=1):
        if not _is_key(key):
            raise ValueError(
                f"{VARIABLE}: key {number} of {len(keys)} is no Fernet key; make one: {MAKE_ONE}"
            )
    if len(set(keys)) < len(keys):
        raise ValueError(f"{VARIABLE} holds the same key twice")
    return keys


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, altchars=b"-_", validate=True)) == KEY_BYTES
    except ValueError:
        return False


def box_of_environment() -> SecretBox:
    """Make the box of this process, also after `hide_keys`."""
    return SecretBox(read_keys(os.environ.get(VARIABLE, "") or _hidden or ""))


def hide_keys() -> None:
    """Take the keys out of os.environ, which bodies' children inherit. This process goes on decrypting."""
    global _hidden
    _hidden = os.environ.pop(VARIABLE, "") or _hidden
