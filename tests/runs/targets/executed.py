"""One attempt of a target in the test's own process, with a real log and a real slot."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scheduler_project.sdk.ledger.interface import Claim
from scheduler_project.sdk.logs.capture import AttemptLog
from scheduler_project.sdk.logs.folder import FolderLogStore
from scheduler_project.sdk.shared.owned_slot import OwnedSlot
from scheduler_project.sdk.shared.slots import SlotTable
from scheduler_project.sdk.targets.registry import TargetCall


class OneSlot:
    claim: Claim

    def __init__(self, folder: Path) -> None:
        self.store = FolderLogStore(folder)
        self.table = SlotTable.create(folder, 1)
        self.owned_slot = OwnedSlot.take(self.table)

    def carry_out(
        self, execute: Callable[[TargetCall], dict[str, Any]], claim: Claim, mask: Iterable[str] = ()
    ) -> dict[str, Any]:
        self.claim = claim
        log = AttemptLog(self.store, claim.run_id, 1, mask=mask)
        assert self.owned_slot is not None
        self.owned_slot.request(claim.token)
        try:
            return execute(TargetCall(claim, self.owned_slot, log, "w"))
        finally:
            log.close()

    @property
    def log(self) -> str:
        return (self.store.read_open(self.claim.run_id, 1) or b"").decode()
