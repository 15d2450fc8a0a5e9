"""A secret as a form: its value can be written and not read, also not while the form is shown again."""

from typing import Any

from django import forms
from django.views.decorators.debug import sensitive_variables
from unfold.widgets import UnfoldAdminTextareaWidget

from jobs import tenant_secrets
from jobs.models import Secret
from jobs.service_form import ServiceForm, line

ATTRIBUTES = {"rows": 4, "autocomplete": "off", "spellcheck": "false", "class": "font-mono"}


class WriteOnly(UnfoldAdminTextareaWidget):  # type: ignore[misc]
    def format_value(self, value: Any) -> str:
        return ""


class SecretForm(ServiceForm):
    name = line("Letters, digits and _; jobs refer to it as ${secret:NAME}.", placeholder="PAYMENTS_KEY")
    value = forms.CharField(
        strip=False,
        help_text="It is never shown again. At least 4 characters.",
        widget=WriteOnly(attrs=ATTRIBUTES),
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
    def ask_service(self) -> Secret:
        # A browser sends other ends of lines than were typed or pasted.
        value = self.cleaned_data["value"].replace("\r\n", "\n")
        if self.instance.pk:
            return tenant_secrets.change_secret(self.instance, {"value": value})
        given = {"name": self.cleaned_data["name"], "value": value}
        return tenant_secrets.create_secret(self.cleaned_data["tenant"], given)
