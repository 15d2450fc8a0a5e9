"""Base classes of the admin: rows of one's own tenants, rows to read only, rows that a service changes."""

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.contrib.filters.admin import AutocompleteSelectFilter, ChoicesDropdownFilter
from unfold.views import ChangeList

from jobs.admin.pagination import UncountedPaginator
from jobs.admin.permissions import is_superuser, may_act, own_tenants
from jobs.models import Pool, Role, Tenant

if TYPE_CHECKING:
    Admin = admin.ModelAdmin[Any]
else:
    from unfold.admin import ModelAdmin as Admin


COLUMNS_IN_A_ROW = 3


class UncountedChangeList(ChangeList):  # type: ignore[misc]
    """Do not count the rows that a list has without its filters."""

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        if any("\x00" in value for _, values in request.GET.lists() for value in values):
            raise IncorrectLookupParameters("PostgreSQL stores no NUL in text")
        super().__init__(request, *args, **kwargs)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.full_result_count = self.result_count
        self.result_list: list[Any] = list(self.result_list)
        self.model_admin.complete_page(request, self.result_list)


class StrictLookupAdmin(Admin):
    """Refuse lookups by which an address could find out what a page masks, and search terms with NUL."""

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return UncountedChangeList

    def complete_page(self, request: HttpRequest, rows: list[Any]) -> None:
        """Add to the rows of a page of the list what its columns read for all of them at once."""

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        """Allow the declared filters and equality alone, so that no masked value is guessed letter by letter.

        Many-to-many fields are refused as well: which other tenants use a pool is not for its members.
        """
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


class TenantScopedAdmin(StrictLookupAdmin):
    """Show members the rows of their own tenants.

    `tenant_path` leads from a row to the id of its tenant, and is empty where rows are of no tenant; `needed` is the
    role that changes a row, None where nobody does.
    """

    tenant_path = "tenant_id"
    needed: Role | None = Role.ADMIN
    # Read by queries of their own: with joins the planner may read far more than the rows of one page.
    prefetched: tuple[str, ...] = ()
    list_filter_submit = True
    list_filter_sheet = False
    list_fullwidth = True
    show_full_result_count = False
    list_per_page = 50
    list_disable_select_all = True
    compressed_fields = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request).prefetch_related(*self.prefetched)
        return rows if is_superuser(request) else self.visible(rows, request)

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        return rows.filter(**{f"{self.tenant_path}__in": own_tenants(request)})

    def tenant_of(self, row: Any) -> int | None:
        if row is None or not self.tenant_path:
            return None
        found: int | None = attrgetter(self.tenant_path.replace("__", "."))(row)
        return found

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may_act(request, None, Role.VIEWER)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.allows(request, obj, Role.VIEWER)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.needed is not None and self.allows(request, obj, self.needed)

    has_add_permission = has_change_permission

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False  # runs and the audit trail refer to deleted rows for years

    def has_operate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Check the permission of buttons. unfold passes the id; a row of another tenant is not found."""
        row = self.get_object(request, object_id) if object_id else None
        if object_id and row is None:
            return False
        return self.allows(request, row, Role.OPERATOR)

    def allows(self, request: HttpRequest, row: Any, needed: Role) -> bool:
        """Check the user's role in the tenant of a row, or in any tenant where there is no row."""
        return may_act(request, self.tenant_of(row), needed)

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        """Return the buttons that apply to the row now."""
        buttons: list[Any] = super().get_actions_detail(request, object_id)  # type: ignore[misc]
        row = self.get_object(request, str(object_id)) if buttons else None
        hidden = self.hidden_buttons(row) if row else set()
        return [button for button in buttons if button.method.original_function_name not in hidden]

    def hidden_buttons(self, row: Any) -> set[str]:
        return set()

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        row = self.get_object(request, object_id)
        extra = {**(extra_context or {}), **(self.page_context(request, row) if row else {})}
        return super().change_view(request, object_id, form_url, extra)

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Return what the template of a row's page shows beside its fields."""
        return {}

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "tenant" and self.needed and not is_superuser(request):
            kwargs["queryset"] = Tenant.objects.filter(pk__in=own_tenants(request, self.needed))
            kwargs["required"] = True
        if db_field.name == "pool" and not is_superuser(request):
            # A form refuses the ids of pools that its user does not see.
            kwargs["queryset"] = self.admin_site.get_model_admin(Pool).get_queryset(request)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    # The audit trail records who did what; Django's log of the admin would do so twice.
    def log_addition(self, *args: Any, **kwargs: Any) -> Any:
        return None

    log_change = log_deletions = log_addition


class ReadOnlyAdmin(TenantScopedAdmin):
    """Show rows that the platform alone writes."""

    needed = None
    # What the page of a row shows below the columns of the list; empty: the fields of the model instead.
    more_fields: tuple[str | tuple[str, ...], ...] = ()

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        if not self.more_fields:
            return super().get_fields(request, obj)
        columns: Any = self.list_display
        rows = (
            columns[first : first + COLUMNS_IN_A_ROW] for first in range(0, len(columns), COLUMNS_IN_A_ROW)
        )
        return [*rows, *self.more_fields]


class LongListAdmin(ReadOnlyAdmin):
    """Show rows of a large table: their list is neither counted nor sorted by other columns."""

    paginator = UncountedPaginator
    list_select_related: ClassVar[Any] = ()
    sortable_by: ClassVar[Any] = ()


class OperatorAdmin(ReadOnlyAdmin):
    """Show rows to operators of the platform only."""

    tenant_path = ""

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return is_superuser(request)

    has_module_permission = has_view_permission

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        return rows.none()


class ServiceAdmin(TenantScopedAdmin):
    """Add and change rows through a ServiceForm; delete them by a button that calls a service."""

    # The fields of those who may only look.
    viewed_fields: Any = ()

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Preselect the tenant of a user who has only one."""
        own = own_tenants(request, self.needed) if self.needed else []
        alone = {"tenant": own[0]} if len(own) == 1 and not is_superuser(request) else {}
        return {**alone, **super().get_changeform_initial_data(request)}

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        # Only the model's own fields: the others are declared by the form, and unfold looks for them on the model.
        fields = [name for name in self.form._meta.fields or () if not obj or name != "tenant"]
        return super().get_form(request, obj, change, **{**kwargs, "fields": fields})

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return [(None, {"fields": self.viewed_fields})]
        return self.form_fieldsets(obj)

    def form_fieldsets(self, row: Any) -> Any:
        raise NotImplementedError

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Write nothing: the service saved the row while the form was validated."""

    def has_remove_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        row = self.get_object(request, object_id) if object_id else None
        return row is not None and self.has_change_permission(request, row)


class VisibleRelatedFilter(AutocompleteSelectFilter):  # type: ignore[misc]
    """Filter by a related row that the user types, from among those they may see."""

    def choices(self, changelist: Any) -> Iterator[Any]:
        remote = self.field.remote_field.model
        allowed = self.model_admin.admin_site.get_model_admin(remote).get_queryset(self.request)
        for choice in super().choices(changelist):
            choice["form"].fields[self.lookup_kwarg].queryset = allowed
            yield choice


def related(*names: str) -> Any:
    """Return the filters of a list by these related rows."""
    return tuple((name, VisibleRelatedFilter) for name in names)


def by_choice(*names: str) -> Any:
    """Return the filters of a list by these fields with choices."""
    return tuple((name, ChoicesDropdownFilter) for name in names)
