"""Addresses and small pieces of HTML that the admin's pages share."""

from collections.abc import Mapping
from typing import Any

from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from auditlog.models import AuditEntry

# The colours of unfold's labels.
GOOD, BAD, WARNING, BUSY, QUIET = "success", "danger", "warning", "info", ""


def page_of(row: Model) -> str:
    meta = row._meta
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[quote(row.pk)])


def list_of(model: type[Model], **query: Any) -> str:
    meta = model._meta
    url = reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist")
    return f"{url}?{'&'.join(f'{name}={value}' for name, value in query.items())}" if query else url


def list_with(row: Model) -> str:
    return list_of(type(row))


def go_to(request: HttpRequest, url: str) -> HttpResponse:
    """Redirect after a dialog. htmx loads dialogs, and leaves the page only on its own header."""
    if request.headers.get("HX-Request"):
        return HttpResponse(headers={"HX-Redirect": url})
    return HttpResponseRedirect(url)


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def link(url: str, text: object) -> SafeString:
    return format_html(
        '<a href="{}" class="whitespace-nowrap text-primary-600 dark:text-primary-500">{}</a>', url, text
    )


def audit_trail(row: Model) -> SafeString:
    return link(list_of(AuditEntry, object_type=row._meta.model_name, object_id=row.pk), "Audit trail")


def label(text: str, colour: str = QUIET) -> SafeString:
    html = render_to_string("unfold/helpers/label.html", {"text": text, "type": colour})
    return mark_safe(html.strip())  # noqa: S308 - the template escapes the text


def state_label(state: str, colours: Mapping[Any, str]) -> SafeString:
    return label(state.replace("_", " "), colours.get(state, QUIET))


def on_one_line(text: object) -> SafeString:
    return format_html('<span class="whitespace-nowrap">{}</span>', text)


def fixed_width(text: str) -> SafeString:
    return format_html('<pre class="bk-code">{}</pre>', text)
