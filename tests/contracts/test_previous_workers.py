"""Workers of the version before work on beside a newer platform: their own statements, on the new tables.

What a worker may rely on is the same for both, so these are the tests of the ledger, but for what is new.
"""

from collections.abc import Iterator, Sequence

import pytest

from scheduler_project.sdk.ledger import Claim, Ended, Told, Wanted
from tests.contracts.previous.postgres import PostgresLedger
from tests.runs import test_ledger
from tests.runs.claims import dsn_of_tests

pytestmark = test_ledger.pytestmark
# Neither stops nor what is terminated was known to them: dispatch holds the first, and the second end as cancelled.
NEW = {
    "test_heartbeat_acknowledges_the_cancels_that_were_asked_for",
    "test_claim_and_release_ask_for_stops_as_dispatch_does",
    "test_heartbeat_names_what_is_terminated_among_the_cancels",
    "test_heartbeat_tells_how_far_the_clocks_are_apart_and_keeps_what_it_is_told",
}
globals().update(
    {name: test for name, test in vars(test_ledger).items() if name.startswith("test_") and name not in NEW}
)


class PreviousLedger(PostgresLedger):
    """As the tests speak to a ledger today; it claimed and told one at a time."""

    def claim(self, wanted: Wanted, again: bool = False) -> list[Claim]:  # type: ignore[override]
        claim = super().claim(wanted.incarnation, wanted.token, wanted.lane, wanted.known, again)
        return [claim] if claim else []

    def report(self, ended: Sequence[Ended]) -> Told:  # type: ignore[override]
        return Told([super(PreviousLedger, self).report(*vars(one).values()) for one in ended], [])


@pytest.fixture
def ledger() -> Iterator[PreviousLedger]:
    ledger = PreviousLedger(dsn_of_tests())
    yield ledger
    ledger.close()


@pytest.fixture
def postgres_ledger(ledger: PreviousLedger) -> PreviousLedger:
    return ledger


def test_nothing_is_called_new_that_is_not_there() -> None:
    assert {name for name in NEW if not hasattr(test_ledger, name)} == set()
