from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularSwaggerView

from scheduler_project import health
from scheduler_project.api import error_pages
from scheduler_project.api.openapi.view import OpenApi

api_urls: list[URLPattern | URLResolver] = [
    path("", RedirectView.as_view(pattern_name="api-docs")),
    path("schema", OpenApi.as_view(), name="api-schema"),
    path("docs", SpectacularSwaggerView.as_view(url_name="api-schema"), name="api-docs"),
    path("", include("jobs.api.urls")),
    path("", include("runs.api.urls")),
    re_path(r"^.*$", error_pages.UnknownAddress.as_view()),
]
urlpatterns = [
    path("", RedirectView.as_view(url="/admin/")),
    path("healthz", health.ready),
    path("health/live", health.live),
    path("health/ready", health.ready),
    path("health", health.health),
    path("admin/", admin.site.urls),
    path("api/v1/", include(api_urls)),
]
handler400 = error_pages.bad_request
handler404 = error_pages.page_not_found
handler500 = error_pages.server_error
