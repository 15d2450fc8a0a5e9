"""Read a job as a request writes it, and report all mistakes at once."""

import copy
from itertools import islice

from jobs.errors import MAX_ERRORS, FieldError, collecting, refuse_any
from jobs.models import Job, JobVersion, Pool, Tenant
from jobs.spec import targets
from jobs.spec.field_types import Origin
from jobs.spec.fields import FIELDS, READ_ONLY
from jobs.spec.targets import availability
from jobs.validation.checks import Json, abbreviate, expect_object, listed, near


def read_new(tenant: Tenant, data: object, job_id: object) -> Json:
    """Read the columns of a whole job; fields that are left out get their defaults."""
    given = expect_object(data, "")
    defaults = {name: copy.deepcopy(field.default) for name, field in FIELDS.items() if not field.required}
    values, errors = _read({**defaults, **given}, Origin(tenant, str(job_id)))
    errors += [
        FieldError(name, f"{name} is required", code="required")
        for name, field in FIELDS.items()
        if field.required and name not in given
    ]
    if "pool" in values and "target" in values:
        with collecting(errors):
            _check_runnable(values["target"], values["pool"], tenant)
    refuse_any(errors)
    return values


def read_changes(job: Job, present: JobVersion, data: object) -> Json:
    """Read the columns that shall change; nested values are replaced whole."""
    values, errors = _read(expect_object(data, ""), Origin(job.tenant, str(job.id)))
    if ("pool" in values or "target" in values) and not errors:
        target, pool = values.get("target", present.target), values.get("pool", job.pool)
        same = pool == job.pool and targets.target_key(target) == present.target_key
        with collecting(errors):
            _check_runnable(target, pool, job.tenant, known=same)
    refuse_any(errors)
    return values


def _check_runnable(target: Json, pool: Pool, tenant: Tenant, *, known: bool = False) -> None:
    """Check what the pool exports, then what its workers know, unless they knew the target before."""
    targets.kind_of(target).check_exported(target, pool)
    if not known:
        availability.check_known(target, pool, tenant)


def _read(given: Json, origin: Origin) -> tuple[Json, list[FieldError]]:
    values: Json = {}
    errors = _unknown_fields(given)
    for name, field in FIELDS.items():
        if name in given:
            with collecting(errors):
                values |= field.read_columns(given[name], origin)
    return values, errors


def _unknown_fields(given: Json) -> list[FieldError]:
    errors = []
    for name in islice((name for name in given if name not in FIELDS), MAX_ERRORS):
        if name in READ_ONLY:
            errors.append(FieldError(name, f"{name} cannot be set", READ_ONLY[name], "read_only"))
        else:
            hint = near(name, FIELDS) or listed(FIELDS, "known are")
            errors.append(FieldError(name[:60], f"{abbreviate(name)} is not known", hint, "unknown_field"))
    return errors
