"""The ledger over HTTPS as tests of the other one use it: for each pool and tenant that they name, with its key."""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

from jobs.models import Job, Pool, Role, Tenant
from runs.logs import store
from runs.models import Run, WorkerNode
from scheduler_project.sdk.ledger.https import HttpsLedger, remote_ledger_url
from scheduler_project.sdk.ledger.interface import (
    Beat,
    Claim,
    ClaimRequest,
    CompletedClaim,
    HeartbeatResponse,
    ReportResult,
    WorkerInfo,
    WorkQueue,
)
from scheduler_project.sdk.logs.folder import FolderLogStore
from tests.support.factories import make_key, make_tenant

Whose = tuple[int, int]


class RemoteLedgers:
    def __init__(self, url: str, ca: Path) -> None:
        self.url, self.ca = url, ca
        self._of: dict[Whose, HttpsLedger] = {}

    def of(self, pool: int, tenant: int) -> HttpsLedger:
        if (pool, tenant) not in self._of:
            whose = Tenant.objects.get(pk=tenant)
            # The key is older than what a test has changed since.
            with patch("jobs.access.api_keys.check_pool_of_key"):
                _, text = make_key(whose, Role.WORKER, pool=Pool.objects.get(pk=pool))
            self._of[pool, tenant] = HttpsLedger(remote_ledger_url(self.url, text, str(self.ca)))
        return self._of[pool, tenant]

    def close(self) -> None:
        for ledger in self._of.values():
            ledger.close()

    def register(self, info: WorkerInfo) -> list[WorkQueue]:
        pool = Pool.objects.get(slug=info.pool)
        return self.of(pool.pk, tenant_in(pool)).register(info)

    def heartbeat(self, beat: Beat) -> HeartbeatResponse:
        return self._of_node(beat.incarnation).heartbeat(beat)

    def claim(self, request: ClaimRequest, again: bool = False) -> list[Claim]:
        queue = request.queue
        if not queue.pool_id:
            return self._of_node(request.incarnation).claim(request, again)
        _came_with_a_key(request.incarnation, queue.pool_id, queue.tenant_id)
        return self.of(queue.pool_id, queue.tenant_id).claim(request, again)

    def report(self, ended: Sequence[CompletedClaim], request: ClaimRequest | None = None) -> ReportResult:
        for one in ended:
            _kept(one)
        groups = [(whose, list(group)) for whose, group in groupby(ended, key=_whose)]
        if not groups:
            assert request is not None
            groups = [((request.queue.pool_id, request.queue.tenant_id), [])]
        results = [
            self.of(*whose).report(group, request if number == len(groups) - 1 else None)
            for number, (whose, group) in enumerate(groups)
        ]
        return ReportResult([state for result in results for state in result.states], results[-1].claims)

    def leave(self, incarnation: UUID) -> None:
        self._of_node(incarnation).leave(incarnation)

    def declare(self, pool: str, tenant: str, *declared: object) -> None:
        whose = Pool.objects.get(slug=pool).pk, Tenant.objects.get(slug=tenant).pk
        self.of(*whose).declare(pool, tenant, *declared)  # type: ignore[arg-type]

    def declaration_errors(self, tenant: str, names: Sequence[str]) -> dict[str, str]:
        raise NotImplementedError

    def _of_node(self, incarnation: UUID) -> HttpsLedger:
        node = WorkerNode.objects.select_related("pool").get(pk=incarnation)
        tenant = node.tenant_id or tenant_in(node.pool)
        _came_with_a_key(incarnation, node.pool_id, tenant)
        return self.of(node.pool_id, tenant)


def tenant_in(pool: Pool) -> int:
    job = Job.objects.filter(pool=pool).order_by("created_at").first()
    return job.tenant_id if job else make_tenant().pk


def _came_with_a_key(incarnation: UUID, pool: int, tenant: int) -> None:
    """Workers that factories make belong to nobody yet."""
    WorkerNode.objects.filter(pk=incarnation, pool=pool, tenant=None).update(tenant=tenant)


def _whose(one: CompletedClaim) -> Whose:
    run = Run.objects.get(pk=one.claim.run_id)
    return run.pool_id, run.tenant_id


def _kept(one: CompletedClaim) -> None:
    """As if the log that the outcome points to had been brought before."""
    if one.outcome.log is not None:
        kept = store()
        assert isinstance(kept, FolderLogStore)
        note = kept._note_path(one.claim.run_id, one.claim.claim_seq)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(vars(one.outcome.log)))
