"""What a member of staff sees and may do in the admin: superusers everything, others by membership (promise 9)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from unfold.contrib.filters.admin import AutocompleteSelectFilter
from unfold.decorators import action
from unfold.enums import ActionVariant
from unfold.forms import BaseDialogForm
from unfold.views import ChangeList
from unfold.widgets import UnfoldAdminTextInputWidget

from jobs.models import Membership, Pool, Role, Tenant
from jobs.refusals import Missing, Refused, hinted
from jobs.tenants import may

if TYPE_CHECKING:
    Admin = admin.ModelAdmin[Any]
    Dialog = forms.Form
else:
    from unfold.admin import ModelAdmin as Admin

    Dialog = BaseDialogForm

Handler = TypeVar("Handler", bound=Callable[..., HttpResponse])
# The colours of unfold's labels.
GOOD, BAD, WARNING, BUSY, QUIET = "success", "danger", "warning", "info", ""


def roles(request: HttpRequest) -> dict[int, str]:
    """Of the user in each of their tenants, read once per request."""
    found: dict[int, str] | None = getattr(request, "_roles", None)
    if found is None:
        found = dict(Membership.objects.filter(user_id=request.user.pk or 0).values_list("tenant_id", "role"))
        request._roles = found  # type: ignore[attr-defined]
    return found


def is_superuser(request: HttpRequest) -> bool:
    return bool(request.user.is_active and getattr(request.user, "is_superuser", False))


def own_tenants(request: HttpRequest, needed: Role = Role.VIEWER) -> list[int]:
    return [tenant for tenant, role in roles(request).items() if may(role, needed)]


def may_act(request: HttpRequest, tenant_id: int | None, needed: Role) -> bool:
    """For no tenant in particular: whether there is one at all."""
    if is_superuser(request):
        return True
    allowed = own_tenants(request, needed)
    return tenant_id in allowed if tenant_id is not None else bool(allowed)


class UncountedList(ChangeList):  # type: ignore[misc]
    """The heading of a list says nothing of how many rows there are without its filters: nobody counted."""

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        if any("\x00" in value for _, values in request.GET.lists() for value in values):
            raise IncorrectLookupParameters("NUL is in no text of the database")
        super().__init__(request, *args, **kwargs)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.full_result_count = self.result_count


class Searched(Admin):
    """Asked for NUL, its lists say that this is nonsense, and its searches find nothing."""

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return UncountedList

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        """Beside the filters an address asks for equality alone: what a page masks is not guessed letter by letter.
        Nor who else may use what one sees."""
        name, _, how = lookup.partition("__")
        entries = self.get_list_filter(request)
        filtered = [entry[0] if isinstance(entry, tuple) else entry for entry in entries]
        if not any(isinstance(own, str) and f"{lookup}__".startswith(f"{own}__") for own in filtered) and (
            how not in ("", "exact") or name in {field.name for field in self.opts.many_to_many}
        ):
            return False
        return bool(super().lookup_allowed(lookup, value, request))

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> Any:
        if "\x00" in search_term:
            return queryset.none(), False
        return super().get_search_results(request, queryset, search_term)


class OfOwnTenants(Searched):
    """Rows of one's own tenants. `tenant_path` leads from a row to its tenant; `needed` is the role that changes it."""

    tenant_path = "tenant"
    needed: Role | None = Role.ADMIN
    list_filter_submit = True
    list_filter_sheet = False
    list_fullwidth = True
    show_full_result_count = False
    list_per_page = 50
    list_disable_select_all = True
    compressed_fields = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        return rows if is_superuser(request) else self.visible(rows, request)

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        return rows.filter(**{f"{self.tenant_path}__in": own_tenants(request)})

    def tenant_of(self, row: Any) -> int | None:
        found: int | None = row.tenant_id
        return found

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may_act(request, None, Role.VIEWER)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return may_act(request, self.tenant_of(obj) if obj else None, Role.VIEWER)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.needed is not None and may_act(request, None, self.needed)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.needed is not None and may_act(request, self.tenant_of(obj) if obj else None, self.needed)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.has_change_permission(request, obj)

    def has_operate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Of the buttons: unfold passes the id, and a row of another tenant is not found at all."""
        row = self.get_object(request, object_id) if object_id else None
        if object_id and row is None:
            return False
        return may_act(request, self.tenant_of(row) if row else None, Role.OPERATOR)

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "tenant" and self.needed and not is_superuser(request):
            kwargs["queryset"] = Tenant.objects.filter(pk__in=own_tenants(request, self.needed))
        if db_field.name == "pool" and not is_superuser(request):
            # Not even by its number is a pool of others found.
            kwargs["queryset"] = self.admin_site.get_model_admin(Pool).get_queryset(request)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    # The audit trail is the one record of who did what.
    def log_addition(self, *args: Any, **kwargs: Any) -> Any:
        return None

    def log_change(self, *args: Any, **kwargs: Any) -> Any:
        return None

    def log_deletions(self, *args: Any, **kwargs: Any) -> Any:
        return None


class LookOnly(OfOwnTenants):
    """What only the platform writes."""

    needed = None


class OfThePlatform(LookOnly):
    """What is nobody's but the operators'."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return is_superuser(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return is_superuser(request)

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        return rows.none()

    def tenant_of(self, row: Any) -> int | None:
        return None


class KeptByService(OfOwnTenants):
    """Added and changed by a ServiceForm. Who has one tenant need not choose it."""

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        own = own_tenants(request, self.needed) if self.needed else []
        alone = {"tenant": own[0]} if len(own) == 1 and not is_superuser(request) else {}
        return {**alone, **super().get_changeform_initial_data(request)}

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """The form has asked the service already."""


class OwnRelated(AutocompleteSelectFilter):  # type: ignore[misc]
    """A filter that asks as one types, instead of listing every tenant or job, and knows only what one may see."""

    def choices(self, changelist: Any) -> Iterator[Any]:
        remote = self.field.remote_field.model
        allowed = self.model_admin.admin_site.get_model_admin(remote).get_queryset(self.request)
        for choice in super().choices(changelist):
            choice["form"].fields[self.lookup_kwarg].queryset = allowed
            yield choice


class ReasonDialog(Dialog):
    reason = forms.CharField(
        required=False,
        max_length=500,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Kept in the audit trail, and shown where it matters.",
    )


VARIANTS = {"": ActionVariant.DEFAULT, "primary": ActionVariant.PRIMARY, "danger": ActionVariant.DANGER}


def button(
    title: str,
    *,
    icon: str,
    asks: str,
    submit: str = "",
    variant: str = "",
    permission: str = "operate",
    form: type[ReasonDialog] = ReasonDialog,
) -> Callable[[Handler], Handler]:
    """Of a page or a row. It opens a dialog that asks for a reason, and maybe more; only its POST acts."""
    dialog = {
        "title": title,
        "description": asks,
        "form_class": form,
        "form_submit_text": submit or title,
    }
    made = action(
        description=title, icon=icon, variant=VARIANTS[variant], dialog=dialog, permissions=[permission]
    )

    def asking(handler: Handler) -> Handler:
        return cast(Handler, _of_allowed_rows(made(handler), permission))

    return asking


def _of_allowed_rows(handler: Any, permission: str) -> Any:
    """Of a button that a row alone has, unfold asks whether it is allowed for any row, and then opens it for all."""

    @wraps(handler)
    def checked(model_admin: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not getattr(model_admin, f"has_{permission}_permission")(request, kwargs.get("object_id")):
            raise PermissionDenied
        return handler(model_admin, request, *args, **kwargs)

    return checked


@contextmanager
def telling(request: HttpRequest, done: str = "") -> Iterator[None]:
    """A refusal of a service becomes a message; it has changed nothing."""
    try:
        yield
    except Refused as refused:
        messages.error(request, hinted(sentence(refused.detail), refused.hint))
    else:
        if done:
            messages.success(request, done)


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def found_or_missing(row: Any) -> Any:
    if row is None:
        raise Missing
    return row


def go_to(request: HttpRequest, url: str) -> HttpResponse:
    """After a dialog, which is loaded by script and so must be told to leave the page."""
    if request.headers.get("HX-Request"):
        return HttpResponse(headers={"HX-Redirect": url})
    return HttpResponseRedirect(url)


def page_of(row: Model) -> str:
    meta = row._meta
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[quote(row.pk)])


def list_of(model: type[Model], **query: Any) -> str:
    meta = model._meta
    url = reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist")
    return f"{url}?{'&'.join(f'{name}={value}' for name, value in query.items())}" if query else url


def link(url: str, text: object) -> SafeString:
    return format_html(
        '<a href="{}" class="bk-nowrap text-primary-600 dark:text-primary-500">{}</a>', url, text
    )


def label(text: str, colour: str = QUIET) -> SafeString:
    return mark_safe(render_to_string("unfold/helpers/label.html", {"text": text, "type": colour}).strip())  # noqa: S308


def together(text: object) -> SafeString:
    """On one line."""
    return format_html('<span class="bk-nowrap">{}</span>', text)


def fixed_width(text: str) -> SafeString:
    return format_html('<pre class="bk-code">{}</pre>', text)
