"""Forms of the admin and their fields. The service alone judges what was typed; its refusals land at the fields."""

from typing import TYPE_CHECKING, Any

from django import forms
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from jobs.refusals import FieldError, InvalidInput, Refused, hinted
from jobs.staff import sentence

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Any]
else:
    ModelForm = forms.ModelForm


class ServiceForm(ModelForm):
    def ask_service(self) -> Any:
        """Creates or changes the row, and returns it."""
        raise NotImplementedError

    def field_for(self, error: FieldError) -> tuple[str | None, str]:
        """The form's field for a path of the input such as `retry.base`, and what to say there."""
        return error.field if error.field in self.fields else None, refusal(error)

    def _post_clean(self) -> None:
        """Asks the service already here, while its refusals can still be shown at the fields."""
        if self.errors:
            return
        try:
            self.instance = self.ask_service()
        except InvalidInput as invalid:
            for error in invalid.errors:
                self.add_error(*self.field_for(error))
        except Refused as refused:
            self.add_error(*self.field_for(FieldError(refused.field, refused.detail, refused.hint)))

    def save(self, commit: bool = True) -> Any:
        # The service has saved it.
        self.save_m2m = lambda: None  # type: ignore[method-assign]
        return self.instance


def refusal(error: FieldError) -> str:
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
