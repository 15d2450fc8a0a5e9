"""Restore the secrets of a target that a form shows masked."""

from collections.abc import Iterator
from typing import Any

from auditlog.redaction import MASK, redact
from jobs.errors import FieldError, InvalidInput
from jobs.spec.targets import KINDS


def unmasked(given: Any, stored: Any) -> Any:
    """Put back what was masked for display, unless another recipient would get the secret."""
    restored = _restored(given, stored)
    if restored != given and _recipient(restored) != _recipient(stored):
        restored = given
    if any(_holds_mask(leaf, stored) for leaf in _leaves(restored)):
        detail = f"{MASK} stands for a secret that is not known here"
        raise InvalidInput([FieldError("target", detail, "write the secret itself")])
    return restored


def _restored(given: Any, stored: Any) -> Any:
    if given == redact(stored):
        return stored
    if isinstance(given, dict) and isinstance(stored, dict):
        masked = redact(stored)
        return {
            name: stored[name]
            if name in stored and value == masked[name]
            else _restored(value, stored.get(name))
            for name, value in given.items()
        }
    if isinstance(given, list) and isinstance(stored, list) and len(given) == len(stored):
        masked = redact(stored)
        return [
            old if new == mask else _restored(new, old)
            for new, old, mask in zip(given, stored, masked, strict=True)
        ]
    return given


def _holds_mask(leaf: Any, stored: Any) -> bool:
    """Test whether a leaf stands in the place of a secret: it is the mask, or text that holds the mask."""
    if leaf == MASK or stored is None:
        return bool(leaf == MASK)
    return isinstance(leaf, str) and MASK in leaf and leaf not in _leaves(stored)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        yield value
        return
    for part in value:
        yield from _leaves(part)


def _recipient(target: Any) -> object:
    kind = KINDS.get(str(target.get("kind"))) if isinstance(target, dict) else None
    return kind.recipient(target) if kind else None
