"""One attempt of a target in the test's own process, with a real log and a real slot."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scheduler_project.sdk.capture import AttemptLog
from scheduler_project.sdk.hand import Hand
from scheduler_project.sdk.ledger import Claim
from scheduler_project.sdk.log_store import FolderLogStore
from scheduler_project.sdk.slots import SlotTable
from scheduler_project.sdk.targets import Attempt


class OneSlot:
    claim: Claim

    def __init__(self, folder: Path) -> None:
        self.store = FolderLogStore(folder)
        self.table = SlotTable.create(folder, 1)
        self.hand = Hand.take(self.table)

    def carry_out(
        self, execute: Callable[[Attempt], dict[str, Any]], claim: Claim, mask: Iterable[str] = ()
    ) -> dict[str, Any]:
        self.claim = claim
        log = AttemptLog(self.store, claim.run_id, 1, mask=mask)
        assert self.hand is not None
        self.hand.ask(claim.token)
        try:
            return execute(Attempt(claim, self.hand, log, "w"))
        finally:
            log.close()

    @property
    def log(self) -> str:
        return (self.store.read_open(self.claim.run_id, 1) or b"").decode()
