"""Deleting a secret against a job that is just being written with it, and two who write the same secret."""

import pytest

from jobs.errors import InUse, InvalidInput
from jobs.models import Job, Secret
from jobs.secrets import service as tenant_secrets
from jobs.services.definition import create_job
from tests.races.staging import held_open, meanwhile, result_after
from tests.support.factories import job_spec, make_pool, make_tenant

pytestmark = pytest.mark.django_db(transaction=True)
TARGET = {"kind": "celery", "task": "tests.succeeds", "args": ["${secret:TOKEN}"]}


@pytest.fixture
def secret() -> Secret:
    make_pool(slug="default")
    return tenant_secrets.create_secret(make_tenant(), {"name": "TOKEN", "value": "value the first"})


def test_a_deletion_waits_for_a_job_that_is_being_written_and_finds_it(secret: Secret) -> None:
    with held_open() as first:
        create_job(secret.tenant, job_spec(name="settle", target=TARGET))
        with pytest.raises(InUse, match="settle"):
            result_after(first, lambda: tenant_secrets.delete_secret(secret))
    assert Secret.objects.filter(pk=secret.pk).exists()


def test_a_job_waits_for_a_deletion_and_finds_no_secret(secret: Secret) -> None:
    with held_open() as first:
        tenant_secrets.delete_secret(secret)
        with pytest.raises(InvalidInput, match="there is no secret TOKEN"):
            result_after(first, lambda: create_job(secret.tenant, job_spec(target=TARGET)))
    assert not Job.objects.exists()


def test_a_new_value_holds_up_no_job(secret: Secret) -> None:
    with held_open():
        tenant_secrets.change_secret(secret, {"value": "value the second"})
        with meanwhile(lambda: create_job(secret.tenant, job_spec(target=TARGET))) as creation:
            assert creation.result(timeout=60).spec.secret_names == ["TOKEN"]


def test_of_two_who_put_the_same_secret_the_later_one_gives_it_its_value(secret: Secret) -> None:
    tenant = secret.tenant
    with held_open() as first:
        tenant_secrets.put_secret(tenant, "FRESH", {"value": "of the first"})
        _, new = result_after(
            first, lambda: tenant_secrets.put_secret(tenant, "FRESH", {"value": "of the second"})
        )
    kept = Secret.objects.get(name="FRESH")
    assert not new
    assert tenant_secrets.box().open(tenant.pk, "FRESH", kept.ciphertext) == "of the second"
