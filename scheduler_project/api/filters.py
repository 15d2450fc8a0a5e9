"""Filter lists by their query."""

from typing import Any

from django.db.models import QuerySet
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework.request import Request
from rest_framework.views import APIView

from jobs.api.requests import refuse_unknown_query
from scheduler_project.api.pagination import PAGING


class StrictFilterBackend(DjangoFilterBackend):  # type: ignore[misc]
    """Refuse unknown parameters: a filter with a typing mistake would otherwise answer with everything."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: APIView) -> QuerySet[Any]:
        filters = self.get_filterset_class(view, queryset)
        names = filters.base_filters if filters else ()
        refuse_unknown_query(request, (*names, *PAGING))
        if not any(name in request.query_params for name in names):
            # Making the form of all filters takes longer than reading the page.
            return queryset
        filtered: QuerySet[Any] = super().filter_queryset(request, queryset, view)
        return filtered
