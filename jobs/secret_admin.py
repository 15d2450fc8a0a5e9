"""Secrets in the admin: members see the names of their tenants' secrets, administrators write values."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.decorators import method_decorator
from django.utils.safestring import SafeString
from django.views.decorators.debug import sensitive_post_parameters

from jobs import tenant_secrets
from jobs.display import moment
from jobs.models import JobVersion, Secret
from jobs.secret_form import SecretForm
from jobs.used_by_admin import UsedByJobs

LOOKED_AT = (("name", "tenant"), ("created", "edited", "last_used"), ("used_by", "trail"))


class SecretAdmin(UsedByJobs):
    form = SecretForm
    list_display = ("name", "tenant", "edited", "updated_by", "last_used", "used_by")
    search_fields = ("name",)
    readonly_fields = ("created", "edited", "last_used", "used_by", "trail")

    def users(self, secret: Secret) -> QuerySet[JobVersion]:
        return tenant_secrets.users(secret).order_by("job__name")

    def delete_by_service(self, secret: Secret, reason: str) -> None:
        tenant_secrets.delete_secret(secret, reason)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return [(None, {"fields": ("tenant", "name", "value")})]
        if not self.has_change_permission(request, obj):
            return [(None, {"fields": LOOKED_AT})]
        return [(None, {"fields": ("name", "value", *LOOKED_AT[1:])})]

    @method_decorator(sensitive_post_parameters())
    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().changeform_view(request, *args, **kwargs)

    @admin.display(description="created")
    def created(self, secret: Secret) -> SafeString | str:
        return moment(secret.created_at)

    @admin.display(description="value of")
    def edited(self, secret: Secret) -> SafeString | str:
        return moment(secret.updated_at)

    @admin.display(description="last used")
    def last_used(self, secret: Secret) -> SafeString | str:
        return moment(secret.last_used_at) if secret.last_used_at else "never"
