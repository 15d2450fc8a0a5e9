"""Serve what a key is: its tenant, its role and its pools."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.access import request_limits
from jobs.access.principal import Principal
from jobs.api.authentication import KeyPermission, principal_of
from jobs.api.openapi import operation
from jobs.api.requests import refuse_unknown_query
from jobs.api.serializers import PlainField
from jobs.api.views import ResourceView
from jobs.models import Pool, Role
from jobs.validation.schema import number, obj, text


class MeSerializer(serializers.Serializer[Principal]):
    name = serializers.CharField(help_text="As audit entries and `requested_by` name it.")
    tenant = serializers.CharField(source="tenant.slug")
    role = PlainField(text("Each includes those before it; a worker's is apart.", enum=list(Role.values)))
    pools = serializers.SerializerMethodField(
        help_text="Open to you, where your jobs can run; of a worker's key its own."
    )
    requests_per_minute = serializers.SerializerMethodField()

    @extend_schema_field(
        obj(
            {"key": number("With this key."), "tenant": number("With all keys of the tenant together.")},
            title="RequestsPerMinute",
            nullable=True,
            description="How many are let through; null for any number. Of a worker's key, those beside its protocol.",
        )
    )
    def get_requests_per_minute(self, principal: Principal) -> dict[str, int | None] | None:
        together = request_limits.of_tenant(principal.tenant)
        if together is None:
            return None
        return {"key": request_limits.of_key(principal.tenant), "tenant": together}

    def get_pools(self, principal: Principal) -> list[str]:
        if principal.pool is not None:
            return [principal.pool.slug]
        return list(Pool.objects.open_to(principal.tenant).order_by("slug").values_list("slug", flat=True))


class Me(ResourceView):
    tag = "access"
    serializer_class = MeSerializer
    permission_classes = [KeyPermission]

    @operation("read_me", "Whose key this is, and what it may do", errors=(400,))
    def get(self, request: Request, **_: Any) -> Response:
        refuse_unknown_query(request, ())
        return self.answer(principal_of(request))
