"""Secrets over HTTP, by their names. A value comes in and is never answered."""

from typing import Any

from django.utils.crypto import salted_hmac
from django.views.decorators.debug import sensitive_variables
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import tenant_secrets
from jobs.api import secret_schema as schema
from jobs.api.authentication import tenant_of
from jobs.api.representation import BASE, instant
from jobs.api.views import answer_once, paged, refuse_unknown_query
from jobs.idempotency import Answer
from jobs.input_checks import Json
from jobs.models import Secret
from jobs.refusals import Missing


class Secrets(APIView):
    newest_first = ("created_at", "id")

    @schema.list_secrets
    def get(self, request: Request) -> Response:
        refuse_unknown_query(request, ("limit", "cursor"))
        own = Secret.objects.of(tenant_of(request))
        return paged(self, request, own, lambda page: [secret_json(secret) for secret in page])

    @schema.create_secret
    @sensitive_variables()
    def post(self, request: Request) -> Response:
        def act() -> Answer:
            return Answer(201, secret_json(tenant_secrets.create_secret(tenant_of(request), request.data)))

        return answer_once(request, act, told_apart_by=disguised(request.data))


class OneSecret(APIView):
    @schema.read_secret
    def get(self, request: Request, name: str) -> Response:
        return Response(secret_json(find_secret(request, name)))

    @schema.put_secret
    @sensitive_variables()
    def put(self, request: Request, name: str) -> Response:
        secret, new = tenant_secrets.put_secret(tenant_of(request), name, request.data)
        return Response(secret_json(secret), status=201 if new else 200)

    @schema.change_secret
    @sensitive_variables()
    def patch(self, request: Request, name: str) -> Response:
        return Response(secret_json(tenant_secrets.change_secret(find_secret(request, name), request.data)))

    @schema.delete_secret
    def delete(self, request: Request, name: str) -> Response:
        tenant_secrets.delete_secret(find_secret(request, name))
        return Response(status=204)


def find_secret(request: Request, name: str) -> Secret:
    """Of this tenant. One of another looks the same as none."""
    known = "\x00" not in name
    secret = Secret.objects.of(tenant_of(request)).filter(name=name).first() if known else None
    if secret is None:
        raise Missing("there is no such secret")
    return secret


@sensitive_variables()
def disguised(body: Any) -> Any:
    """Tells requests apart, and what is kept of it lets nobody try out values: its key is not in the database."""
    if not isinstance(body, dict) or "value" not in body:
        return None
    digest = salted_hmac("beatkeeper.secret", str(body["value"]), algorithm="sha256").hexdigest()
    return {"name": str(body.get("name")), "value": digest}


def secret_json(secret: Secret) -> Json:
    return {
        "name": secret.name,
        "created_at": instant(secret.created_at),
        "created_by": secret.created_by,
        "updated_at": instant(secret.updated_at),
        "updated_by": secret.updated_by,
        "last_used_at": instant(secret.last_used_at),
        "links": {"self": f"{BASE}/secrets/{secret.name}", "jobs": f"{BASE}/jobs?secret={secret.name}"},
    }
