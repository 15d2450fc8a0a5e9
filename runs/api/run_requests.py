"""Serve requests for runs from code. A request is done once, however often it is sent."""

from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.authentication import WorkerPermission, principal_of, tenant_of
from jobs.api.declarations import pool_of
from jobs.api.jobs import PROPERTIES
from jobs.api.openapi import Decorator, operation
from jobs.api.requests import BASE, read_id
from jobs.api.serializers import BodySerializer, InstantField, PlainField
from jobs.api.views import ResourceViewSet
from jobs.models import Role
from jobs.validation.checks import Json, expect_object
from jobs.validation.schema import PRINTABLE, obj, text
from runs.api.serializers import RUN_INPUT
from runs.services import requested_runs as run_requests

ABOUT = (
    "`spec` with `name` and `input`: one more run of a job that is declared in the pool, at `at` or at once; the "
    "role operator may do so. `spec` with a whole job: a job of its own that runs once, at `at` or at once; for "
    "this a key needs the role admin, and a worker's key may ask for Celery tasks without secrets. Done before it "
    "is answered: 201, and 200 with the same request when the `key` comes again with the same words. 400: `spec`, "
    "`at` (it has passed, or is too far ahead beside an `input`) or `pool` is wrong; 404: no such job is "
    "declared in the pool; 409: the job is cancelled, or its target may not go there; 422: the `key` was used for "
    "another request."
)


DECLARED_RUN = obj(
    {"name": text(), "input": RUN_INPUT},
    required=("name", "input"),
    title="DeclaredRun",
    description="One more run of a declared job, with this input.",
)
ONE_TIME_JOB = obj(
    {name: schema for name, schema in PROPERTIES.items() if name not in ("pool", "schedule")},
    required=("name", "target"),
    title="OneTimeJob",
    description="A job of its own that runs once.",
)


class NewRunRequestSerializer(BodySerializer):
    key = PlainField(
        text(
            "The same key again is the same request.",
            minLength=1,
            maxLength=200,
            pattern=f"^{PRINTABLE}+$",
            example="report-2027-03",
        )
    )
    pool = serializers.CharField()
    at = InstantField(required=False, allow_null=True, help_text="When; null or left out: at once.")
    spec = PlainField({"oneOf": [DECLARED_RUN, ONE_TIME_JOB]})


class NewWorkerRunRequestSerializer(NewRunRequestSerializer):
    pool = serializers.CharField(required=False, allow_null=True, help_text="The key's own, if it is named.")


class RunRequestSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    key = serializers.CharField()
    state = serializers.CharField(help_text="`requested`, `scheduled`, `refused`, or the state of its run.")
    at = InstantField(allow_null=True)
    job = serializers.UUIDField(allow_null=True)
    run = serializers.UUIDField(
        allow_null=True, help_text="Of a run at an instant it is known before the run is made."
    )
    result = PlainField({"nullable": True})
    error_line = serializers.CharField()
    links = serializers.SerializerMethodField()

    @extend_schema_field(obj({"self": text(), "run": text()}, may_lack=("run",)))
    def get_links(self, found: Json) -> dict[str, str]:
        links = {"self": f"{self.context['view'].address}/{found['id']}"}
        return {**links, "run": f"{BASE}/runs/{found['run']}"} if found["run"] else links


def operations(of_worker: str = "", about: str = "") -> Decorator:
    """Describe the operations, with the words of one kind of key."""
    return extend_schema_view(
        create=operation(
            f"request_run{of_worker}",
            "Request a run from code",
            takes=NewWorkerRunRequestSerializer if of_worker else NewRunRequestSerializer,
            status=201,
            repeated=200,
            errors=(400, 404, 409, 422),
            about=f"{ABOUT} {about}".strip(),
        ),
        retrieve=operation(f"read_run_request{of_worker}", "Read a request", errors=(404,), about=about),
        cancel=operation(
            f"cancel_run_request{of_worker}",
            "Cancel a request",
            errors=(404, 409) if of_worker else (404,),
            about="A run that has not begun ends; the worker of a running one gets a request to stop it. "
            "A finished one stays as it is. " + about,
        ),
    )


@operations()
class RunRequests(ResourceViewSet):
    tag = "run requests"
    write_role = Role.OPERATOR
    serializer_class = RunRequestSerializer
    address = f"{BASE}/run-requests"

    def create(self, request: Request) -> Response:
        given, principal = expect_object(request.data, ""), principal_of(request)
        pool, spec = pool_of(request, given.get("pool")), given.get("spec")
        of_declared_job = isinstance(spec, dict) and "input" in spec
        if principal.pool is None and not of_declared_job and not principal.may(Role.ADMIN):
            wrong = f"a job that is not declared needs the role admin; the key has {principal.role}"
            raise PermissionDenied(wrong)
        found, new = run_requests.request_run(
            tenant_of(request), pool, given, of_key=principal.pool is not None
        )
        response = self.answer(found, status=201 if new else 200)
        response["Location"] = response.data["links"]["self"]
        return response

    def retrieve(self, request: Request, request_id: str) -> Response:
        tenant, identity = tenant_of(request), read_id(request_id)
        run_requests.find(tenant, principal_of(request).pool, identity)
        return self.answer(run_requests.request_as_json(tenant, identity))

    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, request_id: str) -> Response:
        identity, pool = read_id(request_id), principal_of(request).pool
        return self.answer(run_requests.cancel(tenant_of(request), pool, identity))


@operations("_of_worker", "For a worker's key, in its own pool.")
class WorkerRunRequests(RunRequests):
    permission_classes = [WorkerPermission]
    address = f"{BASE}/worker/run-requests"
