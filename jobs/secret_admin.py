"""Secrets in the admin: members see the names of their tenants' secrets, administrators write values."""

from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.utils.safestring import SafeString
from django.views.decorators.debug import sensitive_post_parameters

from auditlog.models import AuditEntry
from jobs import tenant_secrets
from jobs.display import NOTHING, moment
from jobs.models import Secret
from jobs.secret_form import SecretForm
from jobs.staff import KeptByService, OwnRelated, button, found_or_missing, go_to, link, list_of, telling

JOBS_SHOWN = 10
LOOKED_AT = (("name", "tenant"), ("created", "edited", "last_used"), ("used_by", "trail"))


class SecretAdmin(KeptByService):
    form = SecretForm
    list_display = ("name", "tenant", "edited", "updated_by", "last_used", "used_by")
    list_filter = (("tenant", OwnRelated),)
    list_select_related = ("tenant",)
    search_fields = ("name",)
    ordering = ("tenant_id", "name")
    sortable_by = ()
    autocomplete_fields = ("tenant",)
    actions = None
    actions_detail = ["delete"]
    readonly_fields = ("created", "edited", "last_used", "used_by", "trail")

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False  # the button `Delete` asks the service, which knows who uses it

    def has_remove_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        secret = self.get_object(request, object_id) if object_id else None
        return secret is not None and self.has_change_permission(request, secret)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return [(None, {"fields": ("tenant", "name", "value")})]
        if not self.has_change_permission(request, obj):
            return [(None, {"fields": LOOKED_AT})]
        return [(None, {"fields": ("name", "value", *LOOKED_AT[1:])})]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        # The other fields are the form's own; unfold cannot find them on the model.
        return super().get_form(request, obj, change, **{**kwargs, "fields": () if obj else ("tenant",)})

    @method_decorator(sensitive_post_parameters())
    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().changeform_view(request, *args, **kwargs)

    @button(
        "Delete",
        icon="delete",
        asks="Only while no job refers to it.",
        variant="danger",
        permission="remove",
    )
    def delete(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        secret = found_or_missing(self.get_object(request, object_id))
        with telling(request, f"The secret {secret} is deleted."):
            tenant_secrets.delete_secret(secret, form.cleaned_data["reason"])
        return go_to(request, list_of(Secret))

    @admin.display(description="jobs")
    def used_by(self, secret: Secret) -> str:
        users = tenant_secrets.users(secret).order_by("job__name").values_list("job__name", flat=True)
        names = list(users[: JOBS_SHOWN + 1])
        more = " …" if len(names) > JOBS_SHOWN else ""
        return ", ".join(names[:JOBS_SHOWN]) + more if names else NOTHING

    @admin.display(description="created")
    def created(self, secret: Secret) -> SafeString | str:
        return moment(secret.created_at)

    @admin.display(description="value of")
    def edited(self, secret: Secret) -> SafeString | str:
        return moment(secret.updated_at)

    @admin.display(description="last used")
    def last_used(self, secret: Secret) -> SafeString | str:
        return moment(secret.last_used_at) if secret.last_used_at else "never"

    @admin.display(description="audit trail")
    def trail(self, secret: Secret) -> SafeString:
        return link(list_of(AuditEntry, object_type="secret", object_id=secret.pk), "Audit trail")
