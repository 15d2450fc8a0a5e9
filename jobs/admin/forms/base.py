"""Forms of the admin and their fields. A service validates what was typed, and its errors appear at the fields."""

from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from jobs.admin.html import sentence
from jobs.errors import DomainError, FieldError, InvalidInput, hinted


class ServiceForm(forms.ModelForm):  # type: ignore[type-arg]
    def call_service(self) -> Any:
        """Create or change the row, and return it."""
        raise NotImplementedError

    def field_for(self, error: FieldError) -> tuple[str | None, str]:
        """Return the form's field for a path of the input such as `retry.base`, and the text to show there."""
        return error.field if error.field in self.fields else None, error_text(error)

    def _post_clean(self) -> None:
        # While the form is validated, because the service's errors can still be shown at the fields.
        if self.errors:
            return
        try:
            self.instance = self.call_service()
        except InvalidInput as invalid:
            for error in invalid.errors:
                self.add_error(*self.field_for(error))
        except DomainError as refused:
            self.add_error(*self.field_for(FieldError(refused.field, refused.detail, refused.hint)))

    def save(self, commit: bool = True) -> Any:
        """Return the row that the service saved."""
        self.save_m2m = lambda: None  # type: ignore[method-assign]
        return self.instance


def error_text(error: FieldError) -> str:
    return hinted(sentence(error.detail), error.hint)


def line(help_text: str = "", *, label: str | None = None, placeholder: str = "") -> Any:
    widget = UnfoldAdminTextInputWidget(attrs={"placeholder": placeholder} if placeholder else None)
    return forms.CharField(required=False, help_text=help_text, label=label, widget=widget)


def number(help_text: str = "", *, label: str | None = None) -> Any:
    widget = UnfoldAdminIntegerFieldWidget()
    return forms.IntegerField(required=False, help_text=help_text, label=label, widget=widget)


def choice(values: Any, help_text: str = "", *, label: str | None = None) -> Any:
    pairs = [value if isinstance(value, tuple) else (value, value.replace("_", " ")) for value in values]
    return forms.ChoiceField(
        choices=pairs, help_text=help_text, label=label, widget=UnfoldAdminSelectWidget()
    )
