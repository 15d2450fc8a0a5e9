"""Define the base views of resources and lists."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from django.db.models import Model, QuerySet
from rest_framework.generics import GenericAPIView, ListAPIView, RetrieveAPIView
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from jobs.api.authentication import tenant_of
from jobs.api.idempotency import StoredResponse
from jobs.api.requests import answer_once
from jobs.validation.checks import abbreviate
from jobs.validation.rows import first_or_missing
from jobs.validation.schema import Schema


# The base views have no docstrings: OpenAPI would describe each operation by them.
class ResourceView(GenericAPIView[Any]):
    # Where OpenAPI lists the operations of the view.
    tag: ClassVar[str] = ""
    # Parts of its addresses by name, for OpenAPI; those that end in `_id` are UUIDs.
    path_schemas: ClassVar[Mapping[str, Schema]] = {}

    def get_queryset(self) -> QuerySet[Any]:
        return super().get_queryset().filter(tenant=tenant_of(self.request))

    def read_page(self, ordered: QuerySet[Any], count: int, start: list[Any], backwards: bool) -> list[Any]:
        """Read the first rows; `start` holds the keys of the row that the page follows, if there is one."""
        return list(ordered[:count])

    def answer(self, found: object, status: int = 200) -> Response:
        return Response(self.get_serializer(found).data, status=status)

    def create_once(self, create: Callable[[], Model], distinguished_by: object = None) -> Response:
        def act() -> StoredResponse:
            return StoredResponse(201, self.get_serializer(create()).data)

        return answer_once(self.request, act, distinguished_by)


class NamedView(ResourceView, RetrieveAPIView[Any]):
    # The answer to a name that the tenant has not.
    missing: ClassVar[str]

    def get_object(self) -> Any:
        """Return the tenant's row of this name. One of another tenant looks the same as none."""
        name: str = self.kwargs["name"]
        rows = self.get_queryset()
        named = rows.none() if "\x00" in name else rows.filter(name=name)
        return first_or_missing(named, self.missing.format(abbreviate(name)))


# Several operations on a resource: each address names the method that serves it.
class ResourceViewSet(ResourceView, GenericViewSet[Any]):
    pass


class ListView(ResourceView, ListAPIView[Any]):
    # The columns that pages follow; together they are unique. A cursor shows them, so none may be a key that is counted
    # over all tenants.
    newest_first: ClassVar[tuple[str, ...]] = ("created_at", "id")
