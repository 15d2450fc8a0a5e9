"""Serve the OpenAPI document, in YAML or in JSON."""

from functools import cache
from typing import Any

from django.http import HttpResponse
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiYamlRenderer
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.request import Request

# Stands for the address at which the document is read.
SERVER = b"https://read-at.invalid"


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

    @extend_schema(exclude=True)
    def get(self, request: Request, *_: Any, **__: Any) -> HttpResponse:
        renderer = request.accepted_renderer
        address = request.build_absolute_uri("/").rstrip("/")
        body = written(renderer.format).replace(SERVER, address.encode())
        headers = {"Content-Disposition": f'inline; filename="Beatkeeper.{renderer.format}"'}
        return HttpResponse(body, headers=headers, content_type=renderer.media_type)


@cache
def written(form: str) -> bytes:
    """Write the document once: that takes a quarter of a second, and whoever asks for it needs no key."""
    generator: Any = SchemaGenerator
    document = generator().get_schema(request=None, public=True)
    document["servers"] = [{"url": SERVER.decode()}]
    renderer: Any = OpenApiJsonRenderer if form == OpenApiJsonRenderer.format else OpenApiYamlRenderer
    text: bytes = renderer().render(document, renderer_context={})
    return text
