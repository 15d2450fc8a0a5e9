"""Buttons of pages and rows. Each opens a dialog that asks for a reason, and calls a service when it is sent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from unfold.decorators import action
from unfold.enums import ActionVariant
from unfold.forms import BaseDialogForm
from unfold.widgets import UnfoldAdminTextInputWidget

from jobs.admin.html import go_to, list_of, page_of, sentence
from jobs.errors import DomainError, Missing, hinted


class ReasonDialog(BaseDialogForm):  # type: ignore[misc]
    object_id: Any
    reason = forms.CharField(
        required=False,
        max_length=500,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Kept in the audit trail, and shown where it matters.",
    )


def button(
    title: str,
    icon: str,
    text: str,
    *,
    submit: str = "",
    variant: str = "default",
    permission: str = "operate",
    form: type[ReasonDialog] = ReasonDialog,
    then: Callable[[Any], str] = page_of,
) -> Callable[[Callable[..., Any]], Any]:
    """Declare a button with its dialog.

    The handler takes the row and the dialog's values. It returns a message, or a message and the page to go to; without
    one, and after a refusal by the service, the next page is `then(row)`.
    """
    dialog = {"title": title, "description": text, "form_class": form, "form_submit_text": submit or title}
    unfold_action = action(
        description=title, icon=icon, variant=ActionVariant(variant), dialog=dialog, permissions=[permission]
    )

    def decorate(handler: Callable[..., Any]) -> Any:
        @wraps(handler)
        def submitted(model_admin: Any, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
            url = list_of(model_admin.model)
            with refusals_as_messages(request):
                row = model_admin.get_object(request, object_id)
                if row is None:
                    raise Missing
                url = then(row)
                done = handler(model_admin, row, form.cleaned_data)
                done, url = done if isinstance(done, tuple) else (done, url)
                messages.success(request, done)
            return go_to(request, url)

        opened = unfold_action(submitted)

        # For a button that only rows have, unfold checks the permission without the row.
        @wraps(opened)
        def allowed(model_admin: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if not getattr(model_admin, f"has_{permission}_permission")(request, kwargs.get("object_id")):
                raise PermissionDenied
            return opened(model_admin, request, *args, **kwargs)

        return allowed

    return decorate


@contextmanager
def refusals_as_messages(request: HttpRequest) -> Iterator[None]:
    """Show a service's refusal as a message; the service has changed nothing."""
    try:
        yield
    except DomainError as refused:
        messages.error(request, hinted(sentence(refused.detail), refused.hint))
