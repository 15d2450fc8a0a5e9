"""Answer outside of our views: unknown addresses, requests Django cannot read, our own mistakes."""

from collections.abc import Callable
from typing import Any

from django.core.exceptions import DisallowedHost
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views import defaults
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from scheduler_project.api.problems import PROBLEM_TYPE, problem_body


@extend_schema(exclude=True)
class UnknownAddress(APIView):
    """Require a key first, so that strangers learn no address."""

    write_role = "viewer"

    def get(self, request: Request) -> Response:
        raise Http404

    post = put = patch = delete = get


def _page(status: int, detail: str, elsewhere: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Answer in the API's form below its addresses, and by Django's page elsewhere."""

    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.path.startswith("/api/"):
            return elsewhere(request, *args, **kwargs)
        return JsonResponse(problem_body(status, detail), status=status, content_type=PROBLEM_TYPE)

    return answer


unreadable = _page(400, "the request cannot be read", defaults.bad_request)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if not isinstance(exception, DisallowedHost):
        return unreadable(request, exception)
    hint = "the operator names it in BEATKEEPER_ALLOWED_HOSTS"
    body = problem_body(400, "the host name in the request is not served", "unknown_host", "Host", hint)
    return JsonResponse(body, status=400, content_type=PROBLEM_TYPE)


page_not_found = _page(404, "there is nothing at this address", defaults.page_not_found)
OUR_MISTAKE = "something went wrong on our side, and is in our log under this request_id"
server_error = _page(500, OUR_MISTAKE, defaults.server_error)
