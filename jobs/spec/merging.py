"""Apply a JSON merge patch (RFC 7396) to the fields of a job, as requests and answers write them."""

import copy
from typing import Any

from jobs.spec.fields import FIELDS
from jobs.validation.checks import Json


def merged(present: Json, patch: Json) -> Json:
    """Return the whole new values of the fields that a patch names."""
    return {name: _merged_field(name, present.get(name), value) for name, value in patch.items()}


def not_kept(before: Json, patch: Json, after: Json) -> list[str]:
    """Describe which parts of a field are gone because the patch gives it another kind."""
    found = []
    for name, value in patch.items():
        base = _base(name, before[name], value)
        if base is before[name]:
            continue
        stays = {*base, *value, *after[name]}
        gone = [part for part, given in before[name].items() if given and part not in stays]
        if gone:
            lead = f"{name} is of another kind now; gone, or back at its default, is what it had as"
            found.append(f"{lead} {', '.join(gone)}")
    return found


def _merged_field(name: str, present: Any, patch: Any) -> Any:
    field = FIELDS.get(name)
    if field is not None and patch is None and not field.required:
        return copy.deepcopy(field.default)
    return _merged(_base(name, present, patch), patch)


def _base(name: str, present: Any, patch: Any) -> Any:
    merges_into = FIELDS[name].merges_into if name in FIELDS else None
    if merges_into is None or not isinstance(present, dict) or not isinstance(patch, dict):
        return present
    return merges_into(present, patch)


def _merged(present: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    found = dict(present) if isinstance(present, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = _merged(found.get(name), value)
    return found
