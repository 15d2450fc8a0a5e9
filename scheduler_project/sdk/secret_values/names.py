"""Decide by a name whether its value is secret: one rule for the API, the audit log, a run's log and Sentry."""

from __future__ import annotations

import re
from typing import Any

# Anywhere in a name: PGPASSWORD and ACCESSTOKEN have no word of their own.
PARTS = (
    "password|passwd|passphrase|secret|token(?!i[sz])|credential|authorization|cookie|"
    "api[._-]?key|access[._-]?key|private[._-]?key"
)
# At the end of a word, as in SSHKEY and ENCRYPTION_KEYS, but not in these.
SPARED = ("mon", "don", "tur", "hoc", "joc", "whis")
KEY = "".join(f"(?<!{beginning})" for beginning in SPARED) + "keys?(?![a-z])"
# Whole words only, or `keyboard` would be a secret; `sshKey` and `SSH_KEY` both hold the word.
WORDS = "auth|bearer|dsn|jwt|key|pass|pwd|session|signature"
SECRET_NAME = re.compile(rf"{PARTS}|{KEY}|(?<![a-z])(?:{WORDS})(?![a-z])", re.IGNORECASE)
# A log shows whatever a body prints, so a value is masked there for any of these in its name, even in `KEYSTORE`.
MASKED_PARTS = re.compile("password|passwd|token|secret|key|authorization|cookie|credential", re.IGNORECASE)
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def is_secret_name(name: str) -> bool:
    return bool(SECRET_NAME.search(CAMEL.sub("_", name)))


def secret_values_of(target: dict[str, Any]) -> list[str]:
    """Return the values to mask in logs, and each word of them, by their names in environment and headers."""
    found = []
    for part in ("env", "headers"):
        values = target.get(part)
        if isinstance(values, dict):
            for name, value in values.items():
                if is_secret_name(str(name)) or MASKED_PARTS.search(str(name)):
                    found += [str(value), *str(value).split()]
    return found
