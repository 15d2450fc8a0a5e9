"""The product's addresses, and an endpoint that does nothing but what every endpoint does: authenticate."""

from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from scheduler_project.urls import handler400, handler404, handler500, urlpatterns

__all__ = ["handler400", "handler404", "handler500", "urlpatterns"]


class Trivial(APIView):
    def get(self, request: Request) -> Response:
        return Response({"status": "ok"})


urlpatterns = [path("api/v1/trivial", Trivial.as_view()), *urlpatterns]
