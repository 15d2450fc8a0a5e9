"""The address of the ledger holds a password: nothing shows it."""

import pytest

from scheduler_project.sdk.ledger import open_ledger
from scheduler_project.sdk.shared.folder import Config


@pytest.mark.parametrize("password", ["pa%zzebra", "pa zebra", "zebra@[::1/"])
def test_an_address_that_libpq_would_quote_is_refused_before(password: str) -> None:
    with pytest.raises(ValueError, match="percent-encoded") as refusal:
        open_ledger(f"postgresql://user:{password}@localhost/db")
    assert "zebra" not in str(refusal.value)
    assert refusal.value.__cause__ is refusal.value.__context__ is None


def test_what_a_worker_was_configured_with_shows_no_password() -> None:
    config = Config("w", "h", "p", "t", 1, "postgresql://u:zebra@h/db", "s3://key:zebra@bucket", [])
    assert "zebra" not in repr(config) and "slots=1" in repr(config)
