"""One row declares a field of a job: models, answers, audit entries, drift, form and SDK follow it."""

import pytest

from jobs.admin.forms.job import JobForm, initial
from jobs.declarations import apply_now, declare, declared
from jobs.models import Declaration, Job, JobVersion
from jobs.services.definition import edit_job
from jobs.services.locking import audit_snapshot
from jobs.spec.field_types import Field, InputKind
from jobs.spec.fields import FIELDS
from scheduler_project.sdk.declarations.job_options import FIELDS as DECLARED
from scheduler_project.sdk.declarations.job_options import JobOptions
from tests.support.api_client import Caller
from tests.support.factories import job_spec, make_pool, make_tenant

ROWS = pytest.mark.parametrize("field", FIELDS.values(), ids=list(FIELDS))
FORM_INPUTS = {"pool", *JobForm.declared_fields}
# In an audit entry beside the fields.
STATE = {"status", "paused_until", "version"}
# What drift compares: `present` in the statement `declared` of host/database.sql, and `applied` in the declaration.
COMPARED = {
    *("name", "description", "pool", "priority", "tags", "version", "target", "schedule", "timeout_ms"),
    *("overlap", "catch_up", "retry", "breaker", "max_concurrency"),
}
# What that statement leaves out: keys, states, instants, and what follows from the fields above.
LEFT_OUT = {
    *("id", "job_id", "tenant_id", "pool_id", "calendar_id", "target_key", "secret_names", "anchor_at"),
    "job_fields",
    *("status", "status_reason", "status_by", "status_at", "paused_until"),
    *("created_at", "created_by", "updated_at", "deleted_at"),
}


@ROWS
def test_a_field_has_its_columns(field: Field) -> None:
    model = JobVersion if field.versioned else Job
    for column in field.columns or (field.name,):
        model._meta.get_field(column)


@ROWS
def test_a_field_has_inputs_that_the_form_shows(field: Field) -> None:
    assert field.inputs and field.section in ("", "Schedule", "Execution")
    shown = initial(None, None)
    for one in field.inputs:
        assert one.kind == InputKind.MODEL or one.name in FORM_INPUTS
        assert not one.beside or one.beside in FORM_INPUTS
        if one.kind in (InputKind.NUMBER, InputKind.CHOICE, InputKind.DURATION) and not one.only_when:
            assert one.name in shown


def test_the_sdk_has_the_options_that_the_rows_name() -> None:
    named = {
        option
        for field in FIELDS.values()
        for option in ((field.name,) if field.options is None else field.options)
    }
    assert named == {"name", *JobOptions.__annotations__}
    assert set(DECLARED) < set(FIELDS)


@pytest.mark.django_db
def test_answers_can_be_sent_again_and_change_nothing() -> None:
    caller = Caller(make_tenant())
    make_pool(slug="default")
    answer = caller.post("jobs", job_spec()).json()
    assert set(FIELDS) < set(answer)
    job = Job.objects.get(pk=answer["id"])
    before = audit_snapshot(job, job.spec)
    changed = edit_job(job, {name: answer[name] for name in FIELDS})
    assert audit_snapshot(changed, changed.spec) == before


def test_every_column_is_compared_by_drift_or_left_out_on_purpose() -> None:
    columns = {column.column for model in (Job, JobVersion) for column in model._meta.concrete_fields}
    assert columns == (COMPARED - {"pool"}) | LEFT_OUT


@pytest.mark.django_db
def test_audit_entries_and_drift_see_every_field() -> None:
    tenant, pool = make_tenant(), make_pool(slug="default", exported_tasks=["payments.settle"])
    spec = {"name": "settle", "target": {"kind": "celery", "task": "payments.settle"}}
    declare(tenant, pool, [spec])
    apply_now(tenant, ["settle"])
    job = Declaration.objects.get().job
    assert job is not None
    snapshot = audit_snapshot(job, job.spec)
    assert set(snapshot) == STATE | {field.column for field in FIELDS.values()}
    [found] = declared(tenant, pool)
    assert set(found.present or ()) == COMPARED
    assert found.present == {name: snapshot[name] for name in {*snapshot} - {"status", "paused_until"}}
