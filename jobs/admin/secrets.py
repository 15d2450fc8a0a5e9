"""Secrets in the admin: members see the names of their tenants' secrets, administrators write values."""

from typing import Any

from django import forms
from django.http import HttpRequest
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from unfold.widgets import UnfoldAdminTextareaWidget

from jobs.admin.columns import moment_column
from jobs.admin.forms.base import ServiceForm, line
from jobs.admin.usage import UsedByJobsAdmin
from jobs.models import Secret
from jobs.models.jobs import JobVersionQuerySet
from jobs.secrets import service as tenant_secrets

ATTRIBUTES = {"rows": 4, "autocomplete": "off", "spellcheck": "false", "class": "font-mono"}


class WriteOnlyWidget(UnfoldAdminTextareaWidget):  # type: ignore[misc]
    """Send no value to the browser, also when the form is shown again with errors."""

    def format_value(self, value: Any) -> str:
        return ""


class SecretForm(ServiceForm):
    name = line("Letters, digits and _; jobs refer to it as ${secret:NAME}.", placeholder="PAYMENTS_KEY")
    value = forms.CharField(
        strip=False,
        help_text="It is never shown again. At least 4 characters.",
        widget=WriteOnlyWidget(attrs=ATTRIBUTES),
    )

    class Meta:
        model = Secret
        fields = ("tenant",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        secret = kwargs.get("instance")
        if secret:
            kwargs["initial"] = {"name": secret.name, **(kwargs.get("initial") or {})}
        super().__init__(*args, **kwargs)
        if secret:
            self.fields["name"].disabled = True
            self.fields["value"].label = "New value"

    @sensitive_variables()
    def call_service(self) -> Secret:
        # Browsers send CRLF for each line end of a text area.
        value = self.cleaned_data["value"].replace("\r\n", "\n")
        if self.instance.pk:
            return tenant_secrets.change_secret(self.instance, {"value": value})
        given = {"name": self.cleaned_data["name"], "value": value}
        return tenant_secrets.create_secret(self.cleaned_data["tenant"], given)


class SecretAdmin(UsedByJobsAdmin):
    form = SecretForm
    list_display = ("name", "tenant", "edited", "updated_by", "last_used", "used_by")
    search_fields = ("name",)
    viewed_fields = (("name", "tenant"), ("created", "edited", "last_used"), ("used_by", "trail"))
    readonly_fields = ("created", "edited", "last_used", "used_by", "trail")

    created = moment_column("created_at")
    edited = moment_column("updated_at", "value changed")
    last_used = moment_column("last_used_at", empty="never")
    delete_by_service = staticmethod(tenant_secrets.delete_secret)

    def users(self, row: Secret) -> JobVersionQuerySet:
        return tenant_secrets.users(row).order_by("job__name")

    def form_fieldsets(self, row: Any) -> Any:
        fields = ("name", "value", *self.viewed_fields[1:]) if row else ("tenant", "name", "value")
        return [(None, {"fields": fields})]

    @method_decorator(sensitive_post_parameters())
    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().changeform_view(request, *args, **kwargs)
