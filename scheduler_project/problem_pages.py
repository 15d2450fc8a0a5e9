"""Refusals outside of our views: an unknown address, a request Django cannot read, our own mistakes."""

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views import defaults
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from scheduler_project.api import PROBLEM_TYPE, problem_body


@extend_schema(exclude=True)
class UnknownAddress(APIView):
    """Asks for a key first, so that it tells nothing to strangers."""

    write_role = "viewer"

    def get(self, request: Request) -> Response:
        raise Http404

    post = put = patch = delete = get


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if is_api(request):
        return page(400, "the request cannot be read")
    return defaults.bad_request(request, exception)


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if is_api(request):
        return page(404, "there is nothing at this address")
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    if is_api(request):
        return page(500, "something went wrong on our side, and is in our log under this request_id")
    return defaults.server_error(request)


def is_api(request: HttpRequest) -> bool:
    return request.path.startswith("/api/")


def page(status: int, detail: str) -> HttpResponse:
    return JsonResponse(problem_body(status, detail), status=status, content_type=PROBLEM_TYPE)
