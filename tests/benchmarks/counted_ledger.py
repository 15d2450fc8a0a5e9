"""The ledger in PostgreSQL, with one byte in a file for each request of claims: how many runs it got.

A worker opens it by `python://tests.benchmarks.counted_ledger/open_counted`, so nothing of the product is changed.
"""

import os
from collections.abc import Sequence
from typing import Any, cast

from scheduler_project.sdk.ledger.interface import Claim, ClaimRequest, CompletedClaim, Ledger, ReportResult
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from tests.benchmarks.stamps import appended

FILE = "BENCH_CLAIMS"
URL = f"python://{__name__}/open_counted"


class CountedLedger:
    def __init__(self, ledger: Ledger, file: int) -> None:
        self._ledger, self._file = ledger, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def claim(self, request: ClaimRequest, again: bool = False) -> list[Claim]:
        claims = self._ledger.claim(request, again)
        self._note(claims)
        return claims

    def report(self, ended: Sequence[CompletedClaim], request: ClaimRequest | None = None) -> ReportResult:
        result = self._ledger.report(ended, request)
        if request is not None:
            self._note(result.claims)
        return result

    def _note(self, claims: Sequence[Claim]) -> None:
        """Write at once: a child may be killed. A request gets 64 claims at most, so a byte holds their number."""
        os.write(self._file, bytes([len(claims)]))


def open_counted() -> Ledger:
    ledger = PostgresLedger(os.environ["BEATKEEPER_DATABASE_URL"])
    return cast(Ledger, CountedLedger(ledger, appended(os.environ[FILE])))
