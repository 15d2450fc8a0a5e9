"""Serve the ledger to workers with a key: the statements of every worker, limited to the key's tenant and pool.

A request may name anything; only what is the key's is used. Pool and queue are the key's own, an incarnation of
another tenant is answered as unknown, and what a report needs to know of a run is read here again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Count, Func, IntegerField, Q, Sum

from jobs.access.principal import Principal
from jobs.errors import Conflict
from jobs.models import Declaration, JobVersion, Pool
from jobs.validation.checks import invalid, refuse_unprintable
from runs.ledger.callbacks import claim_for
from runs.ledger.checks import check_end, expect_between, read_member, refuse_many
from runs.ledger.local import worker_rows
from runs.models import LiveRun, WorkerNode
from runs.sql import django_session
from scheduler_project.sdk.errors import LedgerRefused, LedgerUnavailable
from scheduler_project.sdk.ledger.clock_skew import MAX_SKEW_MS
from scheduler_project.sdk.ledger.interface import (
    BATCH_SECONDS,
    MAX_CLAIMS,
    MAX_HELD,
    MAX_IDLE_LEASE,
    MAX_SLOTS,
    MAX_STOPPING,
    Beat,
    Claim,
    ClaimRequest,
    CompletedClaim,
    HeartbeatResponse,
    ReportResult,
    WorkerInfo,
    WorkQueue,
)
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from scheduler_project.sdk.ledger.postgres_connection import AWAY, Connection
from scheduler_project.sdk.ledger.wire import RunEnding
from scheduler_project.sdk.logs.store import PlatformLogStore
from scheduler_project.sdk.outcomes import LogPointer
from scheduler_project.sdk.secret_values.references import names_in, without_other_references

logger = logging.getLogger(__name__)

# Job and gate, by run, number and worker of a claim.
LiveClaims = dict[tuple[UUID, int, UUID], tuple[UUID, bool]]
NO_JOB = UUID(int=0)
MAX_TARGETS = 5_000
# Of one tenant in one pool, with what they know all together: each is looked at for as long as its lease lasts.
MAX_WORKERS = 500
MAX_TARGETS_IN_ALL = 100_000
# Those with a longer one are counted apart.
SHORT_LEASE = MAX_IDLE_LEASE
MAX_DECLARATIONS = 1_000


class RemoteLedger(PostgresLedger):
    def __init__(self, principal: Principal, logs: PlatformLogStore) -> None:
        super().__init__("", of_tenant=principal.tenant.pk, prepares=False)
        assert principal.pool is not None  # noqa: S101 - WorkerPermission admits no other
        self.tenant, self.pool, self.logs = principal.tenant, principal.pool, logs
        # The leases of our own incarnations, None for those of others. This object lives for one request.
        self._looked_up: dict[UUID, float | None] = {}

    def register(self, info: WorkerInfo) -> list[WorkQueue]:
        self._own_names(info.pool, "")
        expect_between(1, info.slots, MAX_SLOTS, "slots", f"{info.slots} slots are")
        expect_lease(info.lease)
        refuse_many("known_targets", info.known_targets, MAX_TARGETS)
        for name in ("name", "host", "version", "region"):
            refuse_unprintable(getattr(info, name), name)
        for target in info.known_targets:
            refuse_unprintable(target, "known_targets")
        if not Pool.objects.open_to(self.tenant).filter(pk=self.pool.pk).exists():
            raise Conflict(f"the pool {self.pool} is no longer open to {self.tenant}")
        self._refuse_crowd(info)
        return super().register(replace(info, pool=self.pool.slug))

    def heartbeat(self, beat: Beat) -> HeartbeatResponse:
        if not self._owned([beat.incarnation]):
            return HeartbeatResponse(known=False)
        for name in ("slots", "busy", "foreign_busy"):
            expect_between(0, getattr(beat, name), MAX_SLOTS, name, f"{getattr(beat, name)} slots are")
        if beat.skew_ms is not None:
            hint = "set the clock of the worker's machine: this is over ten years"
            expect_between(
                -MAX_SKEW_MS, beat.skew_ms, MAX_SKEW_MS, "skew_ms", f"{beat.skew_ms:g} ms is", hint
            )
        refuse_many("held", beat.held, MAX_HELD)
        refuse_many("stopping", beat.stopping, MAX_STOPPING)
        self._refuse_other_lease(beat)
        return super().heartbeat(beat)

    def claim(self, request: ClaimRequest, again: bool = False) -> list[Claim]:
        own = self._own_queue(request)
        return super().claim(own, again) if own else []

    def report_ends(self, ends: Sequence[RunEnding], request: ClaimRequest | None) -> ReportResult:
        """Report each end by itself: one that is not this worker's changes nothing and costs the others nothing."""
        refuse_many("ended", ends, MAX_CLAIMS)
        for number, end in enumerate(ends):
            check_end(end, f"ended[{number}]")
        owned = self._owned({end.incarnation for end in ends} | ({request.incarnation} if request else set()))
        live = self._live_claims(ends)
        for number, end in enumerate(ends):
            if end.log and (end.run_id, end.claim_seq, end.incarnation) in live and end.incarnation in owned:
                member = read_member(end.log, f"ended[{number}].log")
                with _at_the_cost_of_the_log():
                    self.logs.keep(end.run_id, end.claim_seq, self.tenant.slug, end.incarnation, member)
        ends = [self._with_own_references(end, owned) for end in ends]
        ours = [self._ended(end, live) for end in ends if end.incarnation in owned]
        done = self.report(ours, self._own_queue(request) if request else None)
        for one, state in zip(ours, done.states, strict=True):
            if state is not None:
                with _at_the_cost_of_the_log():
                    self.logs.discard(one.claim.run_id, one.claim.claim_seq)
        states = iter(done.states)
        return ReportResult([next(states) if end.incarnation in owned else None for end in ends], done.claims)

    def leave(self, incarnation: UUID) -> None:
        if self._owned([incarnation]):
            super().leave(incarnation)

    def declare(self, pool: str, tenant: str, declarations: Sequence[dict[str, Any]]) -> None:
        self._own_names(pool, tenant)
        refuse_many("declarations", declarations, MAX_DECLARATIONS)
        for number, one in enumerate(declarations):
            if not isinstance(one.get("name"), str):
                raise invalid(f"declarations[{number}].name", "is not a text")
            refuse_unprintable(one["name"], f"declarations[{number}].name")
        names = [one["name"] for one in declarations]
        others = Declaration.objects.filter(tenant=self.tenant, name__in=names).exclude(pool=self.pool)
        taken = sorted(others.values_list("name", flat=True))
        ours = [one for one in declarations if one["name"] not in taken]
        super().declare(self.pool.slug, self.tenant.slug, ours)
        if taken:
            raise LedgerRefused(f"Another pool declares {', '.join(taken[:5])}; an administrator moves them.")

    def declaration_errors(self, tenant: str, names: Sequence[str]) -> dict[str, str]:
        self._own_names("", tenant)
        refuse_many("names", names, MAX_DECLARATIONS)
        ours = Declaration.objects.filter(tenant=self.tenant, pool=self.pool, name__in=names)
        return super().declaration_errors(self.tenant.slug, list(ours.values_list("name", flat=True)))

    def keep_log(self, run: UUID, claim_seq: int, incarnation: UUID, member: bytes) -> LogPointer:
        with self._own_log(run, claim_seq, incarnation):
            return self.logs.keep(run, claim_seq, self.tenant.slug, incarnation, member)

    def append_log(self, run: UUID, claim_seq: int, incarnation: UUID, offset: int, lines: bytes) -> int:
        with self._own_log(run, claim_seq, incarnation):
            return self.logs.append(run, claim_seq, offset, lines)

    # What is ours.

    def _refuse_crowd(self, info: WorkerInfo) -> None:
        """Limit the workers of a tenant: all tenants of the pool wait for the pass that looks at them.

        Within its lease a dead worker looks like a silent one. What long leases leave behind must not keep
        others out until they are over, so these have room of their own. Two that come at once may be one too many.
        """
        is_long = info.lease > SHORT_LEASE
        alike = Q(lease_seconds__gt=SHORT_LEASE) if is_long else Q(lease_seconds__lte=SHORT_LEASE)
        others = WorkerNode.objects.within_lease().filter(alike, tenant=self.tenant, pool=self.pool)
        size = Func("known_targets", function="cardinality", output_field=IntegerField())
        found = others.exclude(pk=info.incarnation).aggregate(workers=Count("pk"), targets=Sum(size))
        targets = (found["targets"] or 0) + len(info.known_targets)
        if found["workers"] < MAX_WORKERS and targets <= MAX_TARGETS_IN_ALL:
            return
        hint = "start fewer with more slots each, or import fewer tasks; one that died counts until its lease is over"
        if is_long:
            hint += f", and those with a lease of {SHORT_LEASE:g} s or less are counted apart"
        raise Conflict(
            f"{self.tenant} has {found['workers']} workers in the pool {self.pool}, and with this one they would know"
            f" {targets} targets in all: {MAX_WORKERS} workers and {MAX_TARGETS_IN_ALL} targets are the most",
            hint=hint,
        )

    def _refuse_other_lease(self, beat: Beat) -> None:
        """Refuse a lease that makes a long one of a short one, or the reverse: they are counted apart."""
        if beat.lease is None:
            return
        expect_lease(beat.lease)
        lease = self._looked_up[beat.incarnation] or 0.0
        least, most = (lease, lease) if lease > SHORT_LEASE else (2.0, SHORT_LEASE)
        if not least <= beat.lease <= most:
            raise Conflict(
                f"the worker has a lease of {lease:g} s",
                hint=f"announce one of {least:g} to {most:g} seconds",
            )

    def _own_names(self, pool: str, tenant: str) -> None:
        """Refuse names of other pools or tenants as unknown, whether they exist or not. A worker may leave them out."""
        if pool not in ("", self.pool.slug):
            raise LedgerRefused(f"This key is for the pool {self.pool.slug!r}: name that one, or none.")
        if tenant not in ("", self.tenant.slug):
            raise LedgerRefused(f"This key is of the tenant {self.tenant.slug!r}: name that one, or none.")

    def _owned(self, incarnations: Iterable[UUID]) -> set[UUID]:
        named = set(incarnations)
        if unknown := named - self._looked_up.keys():
            nodes = WorkerNode.objects.filter(tenant=self.tenant, pool=self.pool, pk__in=unknown)
            own = dict(nodes.values_list("pk", "lease_seconds"))
            self._looked_up.update({incarnation: own.get(incarnation) for incarnation in unknown})
        return {incarnation for incarnation in named if self._looked_up[incarnation] is not None}

    def _own_queue(self, request: ClaimRequest) -> ClaimRequest | None:
        expect_between(1, request.limit, MAX_CLAIMS, "request.limit", f"{request.limit} is")
        if request.token.int % 256 + request.limit > 256:
            wrong = "leaves no room for the tokens of a batch"
            raise invalid("request.token", wrong, "let its last byte be zero", "inconsistent")
        refuse_many("request.known_targets", request.known_targets, MAX_TARGETS)
        refuse_many("request.expected_ms", list(request.expected_ms or ()), MAX_TARGETS)
        if not self._owned([request.incarnation]):
            return None
        queue = WorkQueue(request.queue.id, self.pool.pk, self.tenant.pk, "")
        return replace(request, queue=queue, expected_ms=self._own_length(request.expected_ms))

    def _own_length(self, expected_ms: Mapping[str, int] | None) -> dict[str, int] | None:
        """Keep what is said of the tenant's own runs, within what a claim reckons with."""
        if expected_ms is None:
            return None
        tenant, most = str(self.tenant.pk), int(1000 * BATCH_SECONDS)
        return {tenant: min(most, max(1, expected_ms[tenant]))} if tenant in expected_ms else {}

    @contextmanager
    def _own_log(self, run: UUID, claim_seq: int, incarnation: UUID) -> Iterator[None]:
        """Refuse a claim that is no longer, or never was, this worker's, and a log that cannot be kept."""
        held = LiveRun.objects.filter(pk=run, claim_seq=claim_seq, worker=incarnation)
        if not held.exists() or not self._owned([incarnation]):
            raise Conflict("this claim is not, or no longer, this worker's")
        try:
            yield
        except OSError as error:
            # The worker goes on without the log.
            logger.exception("the log store failed")
            raise Conflict("the log store cannot keep this now") from error

    def _live_claims(self, ends: Sequence[RunEnding]) -> LiveClaims:
        """Return job and gate of the claims that are still live. The other ends change nothing."""
        live = LiveRun.objects.filter(pk__in={end.run_id for end in ends}, worker__isnull=False)
        found = live.values_list("pk", "claim_seq", "worker", "job_id", "gated")
        return {(run, seq, worker): (job, gated) for run, seq, worker, job, gated in found if worker}

    def _with_own_references(self, end: RunEnding, owned: set[UUID]) -> RunEnding:
        """Drop references from the next input that this attempt was not given.

        The input comes from a body, which may refer to its own secrets and to no others of its tenant."""
        given = end.outcome.next_input
        if not given or not names_in(given) or end.incarnation not in owned:
            return end
        live = LiveRun.objects.filter(pk=end.run_id, tenant=self.tenant).first()
        spec = JobVersion.objects.filter(job=live.job_id, version=live.version).first() if live else None
        names = names_in(live.input, spec.target) if live and spec else []
        return replace(end, outcome=replace(end.outcome, next_input=without_other_references(given, names)))

    def _ended(self, end: RunEnding, live: LiveClaims) -> CompletedClaim:
        ids = {name: getattr(end, name) for name in ("run_id", "claim_seq", "incarnation", "token")}
        job_id, gated = live.get((end.run_id, end.claim_seq, end.incarnation), (NO_JOB, False))
        claim = claim_for(
            job_id=job_id, gated=gated, tenant_id=self.tenant.pk, tenant=self.tenant.slug, **ids
        )
        # Where the log lies is what we have written down, never what the worker says.
        log = None
        with _at_the_cost_of_the_log():
            log = self.logs.kept(end.run_id, end.claim_seq)
        return CompletedClaim(claim, replace(end.outcome, log=log), end.verdict)

    # Django's connection, as a worker has it.

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            with worker_rows(django_session()) as raw:
                yield raw
        except AWAY as error:
            connection.close()
            raise LedgerUnavailable("the database is not available") from error


@contextmanager
def _at_the_cost_of_the_log() -> Iterator[None]:
    """Log a failure of the store: one that is full or away must not cost the result."""
    try:
        yield
    except OSError:
        logger.exception("the log store failed")


def expect_lease(seconds: float) -> None:
    expect_between(2, seconds, 3600, "lease", f"{seconds:g} s is", "2 to 3600 seconds")
