"""Define the error of a schedule that cannot be read."""


class BadSchedule(ValueError):
    """The schedule cannot be used as written."""

    def __init__(self, field: str, detail: str, hint: str) -> None:
        super().__init__(f"{field}: {detail} ({hint})")
        self.field, self.detail, self.hint = field, detail, hint
