"""Let people log in to the admin, so many times a minute.

The site loads this form while it is made, so nothing here may import what registers models with it.
"""

from typing import Any

from django.core.exceptions import ValidationError
from unfold.forms import AuthenticationForm

from jobs.access.limiter import LimitExceeded
from jobs.access.request_limits import count_login


class LoginForm(AuthenticationForm):  # type: ignore[misc]
    def clean(self) -> dict[str, Any]:
        given = self.cleaned_data
        if given.get("username") and given.get("password"):
            try:
                count_login(given["username"])
            except LimitExceeded as refused:
                raise ValidationError(f"Too many: {refused.detail}; {refused.hint}.") from None
        cleaned: dict[str, Any] = super().clean()
        return cleaned
