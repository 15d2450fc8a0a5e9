"""Serve secrets by name. No answer holds a value; jobs/secrets/service.py reads the bodies."""

from typing import Any

from django.db.models import QuerySet
from django.utils.crypto import salted_hmac
from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.authentication import tenant_of
from jobs.api.openapi import creation, operation
from jobs.api.serializers import BodySerializer, InstantField, LinksField, PlainField
from jobs.api.views import ListView, NamedView, ResourceView
from jobs.models import Secret
from jobs.secrets import service as secrets
from jobs.validation.schema import text
from scheduler_project.sdk.secret_values.masking import MIN_SECRET
from scheduler_project.sdk.secret_values.references import NAME

NAME_SCHEMA = text(
    f"{secrets.NAME_HINT[0].upper()}{secrets.NAME_HINT[1:]}.",
    pattern=f"^{NAME.pattern}$",
    example="PAYMENTS_KEY",
)


class SecretValueSerializer(BodySerializer):
    value = PlainField(
        text(
            f"At most {secrets.MAX_VALUE_BYTES} bytes.",
            minLength=MIN_SECRET,
            maxLength=secrets.MAX_VALUE_BYTES,
            example="swordfish",
        ),
        write_only=True,
    )


class NewSecretSerializer(SecretValueSerializer):
    name = PlainField(NAME_SCHEMA)


class SecretSerializer(serializers.Serializer[Secret]):
    name = PlainField(NAME_SCHEMA)
    created_at = InstantField()
    created_by = serializers.CharField()
    updated_at = InstantField(help_text="When it got its present value.")
    updated_by = serializers.CharField()
    last_used_at = InstantField(allow_null=True, help_text="By a run; written once an hour at most.")
    links = LinksField(
        self=lambda secret: f"/secrets/{secret.name}", jobs=lambda secret: f"/jobs?secret={secret.name}"
    )


class SecretView(ResourceView):
    tag = "secrets"
    queryset = Secret.objects.all()
    serializer_class = SecretSerializer

    def get_queryset(self) -> QuerySet[Secret]:
        return tenant_of(self.request).secrets.all()


@extend_schema_view(get=operation("list_secrets", "Secrets, newest first: their names", errors=(400,)))
class Secrets(SecretView, ListView):
    newest_first = ("created_at", "name")

    @creation(
        "create_secret",
        "Create a secret",
        takes=NewSecretSerializer,
        errors=(400, 409, 422),
        about="Targets and inputs refer to it as `${secret:NAME}`. Its value is never answered, and masked in "
        "whatever a run prints.",
    )
    @sensitive_variables()
    def post(self, request: Request) -> Response:
        tenant = tenant_of(request)
        return self.create_once(lambda: secrets.create_secret(tenant, request.data), disguised(request.data))


@extend_schema_view(get=operation("read_secret", "One secret, without its value", errors=(404,)))
class OneSecret(SecretView, NamedView):
    missing = "there is no such secret"
    path_schemas = {"name": NAME_SCHEMA}

    @operation(
        "put_secret",
        "Create a secret, or give it a new value",
        takes=SecretValueSerializer,
        status=201,
        repeated=200,
        errors=(400, 409),
        about="Doing it twice is doing it once. 201 when it is new.",
    )
    @sensitive_variables()
    def put(self, request: Request, name: str) -> Response:
        secret, new = secrets.put_secret(tenant_of(request), name, request.data)
        return self.answer(secret, status=201 if new else 200)

    @operation(
        "change_secret",
        "Give a secret a new value",
        takes=SecretValueSerializer,
        errors=(400, 404, 409),
        about="Runs that are claimed from now on get it; what runs already keeps the old one.",
    )
    @sensitive_variables()
    def patch(self, request: Request, **_: Any) -> Response:
        return self.answer(secrets.change_secret(self.get_object(), request.data))

    @operation(
        "delete_secret",
        "Delete a secret",
        status=204,
        errors=(404, 409),
        about="Only while no job refers to it.",
    )
    def delete(self, request: Request, **_: Any) -> Response:
        secrets.delete_secret(self.get_object())
        return Response(status=204)


@sensitive_variables()
def disguised(body: Any) -> Any:
    """Replace the value by a digest whose key is not in the database, so that nobody can try out values."""
    if not isinstance(body, dict) or "value" not in body:
        return None
    digest = salted_hmac("beatkeeper.secret", str(body["value"]), algorithm="sha256").hexdigest()
    return {"name": str(body.get("name")), "value": digest}
