"""Serve the jobs that code bases declare: list them, and apply new declarations."""

from typing import Any

from drf_spectacular.utils import extend_schema_view
from rest_framework import serializers
from rest_framework.fields import empty
from rest_framework.request import Request
from rest_framework.response import Response

from auditlog.redaction import redact
from jobs import declarations
from jobs.api.authentication import WorkerPermission, principal_of, tenant_of
from jobs.api.jobs import sees_secrets
from jobs.api.openapi import Decorator, operation, query
from jobs.api.requests import refuse_unknown_query
from jobs.api.serializers import BodySerializer, PlainField
from jobs.api.views import ResourceView
from jobs.models import Pool, Role
from jobs.validation.checks import Json, abbreviate, expect_object, expect_text, invalid, refuse_unprintable
from jobs.validation.schema import PRINTABLE, obj, text
from scheduler_project.sdk.declarations.plan import DeclaredJob

MAX_DECLARED = 1000
MAX_NAME_LENGTH = 120
MAX_SOURCE_LENGTH = 200


class DeclaredSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    pool = serializers.CharField()
    source = serializers.CharField(  # type: ignore[assignment]
        help_text="The code base, by the name of its Celery app."
    )
    spec = serializers.DictField(help_text="As it was declared.")
    applied = serializers.DictField(allow_null=True, help_text="What the job was when this had been applied.")
    present = serializers.DictField(
        allow_null=True,
        help_text="What the job is now. Of one in another pool a worker's key sees only that it is.",
    )
    status = serializers.CharField(help_text="The job's.")
    error = serializers.CharField(help_text="Why it was refused.")
    waiting = serializers.BooleanField(help_text="To be applied by a scheduler.")
    withdrawn = serializers.BooleanField(help_text="Its code base has taken it back; the job is cancelled.")
    edited_by = serializers.CharField(help_text="Who wrote the job's present version.")


class DeclaredListSerializer(serializers.Serializer[Any]):
    results = DeclaredSerializer(many=True)


DECLARED_SPEC = obj(
    {
        "name": text(minLength=1, maxLength=MAX_NAME_LENGTH, pattern=f"^{PRINTABLE}+$"),
        "source": text("The code base.", maxLength=MAX_SOURCE_LENGTH),
    },
    required=("name",),
    additionalProperties=True,
    title="JobDeclaration",
    description="As `POST /jobs` takes it, with `source` beside. One that is wrong is kept as refused.",
)


class PoolField(serializers.CharField):
    def run_validation(self, data: Any = empty) -> Pool:
        return pool_of(self.context["request"], None if data is empty else data)


class SpecsField(PlainField):
    """Read the names of declared jobs; the rest of each spec is read when it is applied."""

    def run_validation(self, data: Any = empty) -> list[Json]:
        specs = [] if data is empty else data
        if not isinstance(specs, list) or len(specs) > MAX_DECLARED:
            hint = f"a list of at most {MAX_DECLARED} jobs"
            raise invalid("declarations", f"{abbreviate(specs)} is not a list", hint)
        specs = [expect_object(item, f"declarations[{number}]") for number, item in enumerate(specs)]
        for number, spec in enumerate(specs):
            name = spec.get("name")
            if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_LENGTH:
                hint = f"a string of 1 to {MAX_NAME_LENGTH} printable characters"
                raise invalid(f"declarations[{number}].name", f"{abbreviate(name)} is not a name", hint)
            refuse_unprintable(name, f"declarations[{number}].name")
            expect_text(
                spec.get("source", ""), f"declarations[{number}].source", "a code base", MAX_SOURCE_LENGTH
            )
        return specs


def _is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= MAX_NAME_LENGTH


class NamesField(serializers.ListField):
    child = serializers.CharField(max_length=MAX_NAME_LENGTH)

    def run_validation(self, data: Any = empty) -> list[str]:
        names = [] if data is empty else data
        if not isinstance(names, list) or not all(_is_name(name) for name in names):
            detail = f"{abbreviate(names)} is not a list of names"
            raise invalid(str(self.field_name), detail, "names of declared jobs")
        return names


class DeclarationsSerializer(BodySerializer):
    pool = PoolField()
    declarations = SpecsField(
        {"type": "array", "maxItems": MAX_DECLARED, "items": DECLARED_SPEC}, required=False
    )
    again = NamesField(required=False, help_text="Of these: put back what was edited by hand.")
    withdraw = NamesField(required=False, help_text="No longer declared: their jobs are cancelled.")


# A worker's key names at most its own pool.
class WorkerDeclarationsSerializer(DeclarationsSerializer):
    pool = PoolField(required=False, allow_null=True, help_text="The key's own, if it is named.")


def operations(of_worker: str, about_pool: str, about_query: str, required: bool) -> Decorator:
    """Describe the operations, with the words of one kind of key."""
    return extend_schema_view(
        get=operation(
            f"list_declarations{of_worker}",
            "Declared jobs of a pool",
            errors=(400,),
            parameters=(query("pool", about_query, required=required),),
            about=about_pool,
        ),
        post=operation(
            f"declare{of_worker}_jobs",
            "Declare jobs",
            takes=DeclarationsSerializer if required else WorkerDeclarationsSerializer,
            errors=(400,),
            about="What a code base declares becomes jobs by the same rules as `POST /jobs`; a job that is refused "
            f"keeps the reason as its `error`, and the others are made. {about_pool}",
        ),
    )


@operations("", "", "One that is open to you.", required=True)
class Declarations(ResourceView):
    tag = "declarations"
    serializer_class = DeclaredListSerializer
    write_role = Role.ADMIN

    def get(self, request: Request) -> Response:
        refuse_unknown_query(request, ("pool",))
        return Response(_shown(request, pool_of(request, request.query_params.get("pool"))))

    def post(self, request: Request) -> Response:
        given = DeclarationsSerializer.read(request)
        tenant, pool, specs = tenant_of(request), given["pool"], given["declarations"]
        of_key = principal_of(request).pool is not None
        anew = [spec for spec in specs if spec["name"] in given["again"]]
        others = [spec for spec in specs if spec["name"] not in given["again"]]
        declarations.declare(tenant, pool, others, of_key=of_key)
        declarations.declare(tenant, pool, anew, again=True, of_key=of_key)
        declarations.withdraw(tenant, pool, given["withdraw"], of_key=of_key)
        declarations.apply_now(tenant, [*(spec["name"] for spec in specs), *given["withdraw"]])
        return Response(_shown(request, pool))


@operations(
    "_of_worker", "For a worker's key, of its own pool.", "The key's own, if it is named.", required=False
)
class WorkerDeclarations(Declarations):
    permission_classes = [WorkerPermission]


def pool_of(request: Request, slug: Any) -> Pool:
    """Return the pool that a request names: of a worker's key its own, of others one that is open to them."""
    own = principal_of(request).pool
    if own is not None and slug in (None, "", own.slug):
        return own
    pools = Pool.objects.open_to(tenant_of(request)) if own is None else Pool.objects.none()
    pool = pools.filter(slug=slug).first() if isinstance(slug, str) else None
    if pool is None:
        hint = f"the key is for the pool {own.slug}" if own else "name a pool that is open to you"
        raise invalid("pool", f"{abbreviate(slug)} is not a pool open to you", hint, "unknown_pool")
    return pool


def _shown(request: Request, pool: Pool) -> Json:
    found = declarations.declared(tenant_of(request), pool)
    if principal_of(request).pool is not None:
        return {"results": [_to_worker(one) for one in found]}
    shown = [vars(one) for one in found]
    return {"results": shown if sees_secrets(request) else redact(shown)}


def _to_worker(one: DeclaredJob) -> Json:
    """Show a job to its worker, unredacted. Of a job that was moved to another pool show only that it was moved."""
    if one.present is None or one.present["pool"] == one.pool:
        return vars(one)
    return {**vars(one), "present": {**(one.applied or {}), "pool": "another pool"}}
