"""Runs that code asks for with a key of its own: what was asked is done once, however often it is asked."""

from typing import Any
from uuid import UUID

from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.authentication import WorkerPermission, key_of, tenant_of
from jobs.api.declaration_views import pool_of
from jobs.api.representation import BASE, instant
from jobs.api.views import read_id
from jobs.input_checks import Json, expect_object
from jobs.models import Role
from jobs.tenants import may
from runs import run_requests
from runs.api import request_schema as schema


class RunRequests(APIView):
    write_role = Role.OPERATOR
    address = f"{BASE}/run-requests"

    @schema.request_run
    def post(self, request: Request) -> Response:
        return self.asked(request)

    def asked(self, request: Request) -> Response:
        given, key = expect_object(request.data, ""), key_of(request)
        pool, spec = pool_of(request, given.get("pool")), given.get("spec")
        of_declared_job = isinstance(spec, dict) and "input" in spec
        if key.pool is None and not of_declared_job and not may(key.role, Role.ADMIN):
            raise PermissionDenied(f"a job that is not declared needs the role admin; the key has {key.role}")
        found, new = run_requests.ask(tenant_of(request), pool, given, of_key=key.pool is not None)
        body = request_json(found, self.address)
        return Response(body, status=201 if new else 200, headers={"Location": body["links"]["self"]})


class OneRunRequest(APIView):
    address = f"{BASE}/run-requests"

    @schema.read_request
    def get(self, request: Request, request_id: str) -> Response:
        return self.shown(request, request_id)

    def shown(self, request: Request, request_id: str) -> Response:
        return Response(request_json(_found(request, read_id(request_id)), self.address))


class CancelRunRequest(APIView):
    write_role = Role.OPERATOR
    address = f"{BASE}/run-requests"

    @schema.cancel_request
    def post(self, request: Request, request_id: str) -> Response:
        return self.cancelled(request, request_id)

    def cancelled(self, request: Request, request_id: str) -> Response:
        found = run_requests.cancel(tenant_of(request), key_of(request).pool, read_id(request_id))
        return Response(request_json(found, self.address))


class OfWorker(APIView):
    """The same for a worker's key, and of its pool alone."""

    permission_classes = [WorkerPermission]
    address = f"{BASE}/worker/run-requests"


class RunRequestsOfWorker(OfWorker, RunRequests):
    @schema.request_run_of_worker
    def post(self, request: Request) -> Response:
        return self.asked(request)


class OneRunRequestOfWorker(OfWorker, OneRunRequest):
    @schema.read_request_of_worker
    def get(self, request: Request, request_id: str) -> Response:
        return self.shown(request, request_id)


class CancelRunRequestOfWorker(OfWorker, CancelRunRequest):
    @schema.cancel_request_of_worker
    def post(self, request: Request, request_id: str) -> Response:
        return self.cancelled(request, request_id)


def _found(request: Request, identity: UUID) -> Json:
    run_requests.find(tenant_of(request), key_of(request).pool, identity)
    return run_requests.shown_request(tenant_of(request), identity)


def request_json(found: Json, address: str) -> dict[str, Any]:
    run = found["run"]
    return {
        "id": str(found["id"]),
        "key": found["key"],
        "state": found["state"],
        "at": instant(found["at"]),
        "job": str(found["job"]) if found["job"] else None,
        "run": str(run) if run else None,
        "result": found["result"],
        "error_line": found["error_line"],
        "links": {"self": f"{address}/{found['id']}", **({"run": f"{BASE}/runs/{run}"} if run else {})},
    }
