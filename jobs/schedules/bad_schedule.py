class BadSchedule(ValueError):
    """The schedule cannot be used as written."""

    def __init__(self, field: str, detail: str, hint: str) -> None:
        super().__init__(f"{field}: {detail} ({hint})")
        self.field = field
        self.detail = detail
        self.hint = hint
