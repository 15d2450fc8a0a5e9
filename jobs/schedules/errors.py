"""Define the error of a schedule or calendar that cannot be read."""

from jobs.errors import FieldError, InvalidInput


class BadSchedule(InvalidInput):
    """The schedule cannot be used as written."""

    def __init__(self, field: str, detail: str, hint: str, code: str = "invalid") -> None:
        super().__init__([FieldError(field, detail, hint, code)])

    def __str__(self) -> str:
        return f"{self.field}: {self.detail} ({self.hint})"
