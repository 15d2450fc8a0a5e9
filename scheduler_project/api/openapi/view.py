"""Serve the OpenAPI document, in YAML or in JSON."""

from typing import Any

from drf_spectacular.views import SpectacularAPIView
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.request import Request


class ByFormatOrAccept(DefaultContentNegotiation):
    """Take the form from `?format=`, else from the Accept header; without either, or for another form, YAML."""

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        wanted = request.query_params.get("format")
        accepted = [one.partition(";")[0].strip() for one in self.get_accept_list(request)]
        for renderer in renderers:
            named = renderer.format == wanted if wanted else renderer.media_type in accepted
            if named:
                return renderer, renderer.media_type
        return renderers[0], renderers[0].media_type


class OpenApi(SpectacularAPIView):
    content_negotiation_class = ByFormatOrAccept
