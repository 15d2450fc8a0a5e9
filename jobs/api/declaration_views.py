"""Jobs that a code base declares: what of them is here, and what it declares now."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from auditlog.redaction import redact
from jobs import declarations
from jobs.api import declaration_schema as schema
from jobs.api.authentication import WorkerPermission, key_of, tenant_of
from jobs.api.views import refuse_unknown_query, sees_secrets
from jobs.input_checks import Json, expect_object, refuse_unknown, refused, shown
from jobs.models import Pool, Role
from scheduler_project.sdk.plan import Declared

MOST_DECLARED = 1000
LONGEST_NAME = 120


class Declarations(APIView):
    write_role = Role.ADMIN

    @schema.list_declarations
    def get(self, request: Request) -> Response:
        return self.listed(request)

    @schema.declare
    def post(self, request: Request) -> Response:
        return self.declared(request)

    def listed(self, request: Request) -> Response:
        refuse_unknown_query(request, ("pool",))
        return Response(_shown(request, pool_of(request, request.query_params.get("pool"))))

    def declared(self, request: Request) -> Response:
        given = expect_object(request.data, "")
        refuse_unknown(given, ("pool", "declarations", "again", "withdraw"), "")
        tenant, pool = tenant_of(request), pool_of(request, given.get("pool"))
        specs = _read_specs(given.get("declarations", []))
        again, withdrawn = _read_names(given, "again"), _read_names(given, "withdraw")
        of_key = key_of(request).pool is not None
        anew = [spec for spec in specs if spec["name"] in again]
        others = [spec for spec in specs if spec["name"] not in again]
        declarations.declare(tenant, pool, others, of_key=of_key)
        declarations.declare(tenant, pool, anew, again=True, of_key=of_key)
        declarations.withdraw(tenant, pool, withdrawn, of_key=of_key)
        declarations.apply_now(tenant, [*(spec["name"] for spec in specs), *withdrawn])
        return Response(_shown(request, pool))


class DeclarationsOfWorker(Declarations):
    """The same for a worker's key, and of its pool alone."""

    permission_classes = [WorkerPermission]

    @schema.list_declarations_of_worker
    def get(self, request: Request) -> Response:
        return self.listed(request)

    @schema.declare_of_worker
    def post(self, request: Request) -> Response:
        return self.declared(request)


def pool_of(request: Request, slug: Any) -> Pool:
    """A worker's key is for one pool; whoever has another key names one that is open to the tenant."""
    own = key_of(request).pool
    if own is not None and slug in (None, "", own.slug):
        return own
    pools = Pool.objects.open_to(tenant_of(request)) if own is None else Pool.objects.none()
    pool = pools.filter(slug=slug).first() if isinstance(slug, str) else None
    if pool is None:
        hint = f"the key is for the pool {own.slug}" if own else "name a pool that is open to you"
        raise refused("pool", f"{shown(slug)} is not a pool open to you", hint, "unknown_pool")
    return pool


def _shown(request: Request, pool: Pool) -> Json:
    found = declarations.declared(tenant_of(request), pool)
    if key_of(request).pool is not None:
        return {"results": [_to_worker(one) for one in found]}
    shown = [vars(one) for one in found]
    return {"results": shown if sees_secrets(request) else redact(shown)}


def _to_worker(one: Declared) -> Json:
    """As its runs have it, unmasked. Of a job that was moved to another pool it is told that, and nothing else."""
    if one.present is None or one.present["pool"] == one.pool:
        return vars(one)
    return {**vars(one), "present": {**(one.applied or {}), "pool": "another pool"}}


def _read_specs(value: object) -> list[Json]:
    if not isinstance(value, list) or len(value) > MOST_DECLARED:
        raise refused(
            "declarations", f"{shown(value)} is not a list", f"a list of at most {MOST_DECLARED} jobs"
        )
    specs = [expect_object(item, f"declarations[{number}]") for number, item in enumerate(value)]
    for number, spec in enumerate(specs):
        name = spec.get("name")
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
            hint = f"a string of 1 to {LONGEST_NAME} characters"
            raise refused(f"declarations[{number}].name", f"{shown(name)} is not a name", hint)
    return specs


def _read_names(given: Json, field: str) -> list[str]:
    names = given.get(field, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise refused(field, f"{shown(names)} is not a list of names", "names of declared jobs")
    return names
