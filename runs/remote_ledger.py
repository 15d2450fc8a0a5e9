"""What a worker's key may say and hear: the statements of every worker, held to the key's tenant and pool.

Of all that a request names, only what is the key's is used: its pool and lane are the key's own, an incarnation of
somebody else is answered as one that never was, and what the report needs to know of a run is read here again.
"""

from __future__ import annotations

import base64
import logging
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
from django.db import connection
from django.db.models import Count, Func, IntegerField, Q, Sum
from psycopg.rows import dict_row
from psycopg.types.json import JsonbLoader

from jobs.input_checks import refuse_large, refused
from jobs.models import ApiKey, Declaration, JobVersion, Pool
from jobs.refusals import Conflict
from runs.models import ErrorClass, LiveRun, WorkerNode
from runs.states import FinalState, LiveState
from scheduler_project.sdk.capture import MAX_BYTES
from scheduler_project.sdk.claim_details import claim_of
from scheduler_project.sdk.clock_skew import FARTHEST_MS
from scheduler_project.sdk.ledger import (
    GIVEN_BACK,
    MOST_CLAIMS,
    MOST_HELD,
    MOST_SLOTS,
    MOST_STOPPING,
    READY,
    Answer,
    Beat,
    Claim,
    Ended,
    Lane,
    LedgerRefused,
    LedgerUnavailable,
    Told,
    Wanted,
    WorkerInfo,
)
from scheduler_project.sdk.log_store import PlatformLogStore
from scheduler_project.sdk.outcomes import FAILED, SUCCEEDED, LogPointer
from scheduler_project.sdk.postgres import AWAY, Connection, PostgresLedger
from scheduler_project.sdk.references import defused, names_in
from scheduler_project.sdk.wire import End

logger = logging.getLogger(__name__)

NO_JOB = UUID(int=0)
# The last line, which says that the log ends there, comes on top.
LARGEST_LOG = MAX_BYTES + 64 * 1024
HIGHEST_CLAIM_SEQ = 2**31 - 1
MOST_TARGETS = 5_000
# Of one tenant in one pool, with what they know all together: each is looked at for as long as its lease lasts.
MOST_WORKERS = 500
MOST_TARGETS_IN_ALL = 100_000
# Those with a longer one are counted apart.
SHORT_LEASE = 60.0
MOST_DECLARATIONS = 1_000
LONGEST_DELAY = 31 * 86_400.0
DIGEST = re.compile("[0-9a-f]{64}")
FINGERPRINT = re.compile("[0-9a-f]{0,32}")
# What may become of a run, by what came of the attempt. The retry policy is the worker's to apply.
NEXT_STATES = {
    SUCCEEDED: (FinalState.SUCCEEDED, LiveState.WAITING_CALLBACK),
    FAILED: (FinalState.DEAD, LiveState.DELAYED),
    GIVEN_BACK: (READY,),
}


class WorkerCursor(psycopg.Cursor[dict[str, Any]]):
    """As on a worker's own connection: Django's binds on this side and leaves JSON as text."""

    def __init__(self, connection: Connection, **_options: Any) -> None:
        super().__init__(connection, row_factory=dict_row)
        self.adapters.register_loader("jsonb", JsonbLoader)


class RemoteLedger(PostgresLedger):
    def __init__(self, key: ApiKey, logs: PlatformLogStore) -> None:
        super().__init__("", of_tenant=key.tenant_id)
        assert key.pool is not None  # noqa: S101 - the table's own constraint
        self.tenant, self.pool, self.logs = key.tenant, key.pool, logs
        # Whose an incarnation is never changes, and this object lives for one request.
        self._looked_up: dict[UUID, bool] = {}

    def register(self, info: WorkerInfo) -> list[Lane]:
        self._own_names(info.pool, "")
        if not 1 <= info.slots <= MOST_SLOTS:
            raise refused(
                "slots", f"{info.slots} slots are out of range", f"1 to {MOST_SLOTS}", "out_of_range"
            )
        if not 2.0 <= info.lease <= 3600.0:
            raise refused("lease", f"{info.lease:g} s is out of range", "2 to 3600 seconds", "out_of_range")
        _refuse_many("known_targets", info.known_targets, MOST_TARGETS)
        if not Pool.objects.open_to(self.tenant).filter(pk=self.pool.pk).exists():
            raise Conflict(f"the pool {self.pool} is no longer open to {self.tenant}")
        self._refuse_crowd(info)
        return super().register(replace(info, pool=self.pool.slug))

    def heartbeat(self, beat: Beat) -> Answer:
        if not self._owned([beat.incarnation]):
            return Answer(known=False)
        for name in ("slots", "busy", "foreign_busy"):
            if not 0 <= (given := getattr(beat, name)) <= MOST_SLOTS:
                raise refused(name, f"{given} slots are out of range", f"0 to {MOST_SLOTS}", "out_of_range")
        if beat.skew_ms is not None and not abs(beat.skew_ms) <= FARTHEST_MS:
            hint = "set the clock of the worker's machine: this is over ten years"
            raise refused("skew_ms", f"{beat.skew_ms:g} ms is out of range", hint, "out_of_range")
        _refuse_many("held", beat.held, MOST_HELD)
        _refuse_many("stopping", beat.stopping, MOST_STOPPING)
        return super().heartbeat(beat)

    def claim(self, wanted: Wanted, again: bool = False) -> list[Claim]:
        own = self._own_lane(wanted)
        return super().claim(own, again) if own else []

    def report(self, ended: Sequence[Ended], wanted: Wanted | None = None) -> Told:
        told = super().report(ended, self._own_lane(wanted) if wanted else None)
        for one, state in zip(ended, told.states, strict=True):
            if state is not None:
                with _at_the_cost_of_the_log():
                    self.logs.discard(one.claim.run_id, one.claim.claim_seq)
        return told

    def report_ends(self, ends: Sequence[End], wanted: Wanted | None) -> Told:
        """Each by itself: what is not ours changes nothing and costs the others nothing."""
        _refuse_many("ended", ends, MOST_CLAIMS)
        for number, end in enumerate(ends):
            _check(end, f"ended[{number}]")
        owned = self._owned({end.incarnation for end in ends} | ({wanted.incarnation} if wanted else set()))
        facts = self._facts(ends)
        for number, end in enumerate(ends):
            if end.log and (end.run_id, end.claim_seq, end.incarnation) in facts and end.incarnation in owned:
                member = read_member(end.log, f"ended[{number}].log")
                with _at_the_cost_of_the_log():
                    self.logs.keep(end.run_id, end.claim_seq, self.tenant.slug, end.incarnation, member)
        ends = [self._with_own_references(end, owned) for end in ends]
        ours = [self._ended(end, facts) for end in ends if end.incarnation in owned]
        told = self.report(ours, wanted)
        states = iter(told.states)
        return Told([next(states) if end.incarnation in owned else None for end in ends], told.claims)

    def leave(self, incarnation: UUID) -> None:
        if self._owned([incarnation]):
            super().leave(incarnation)

    def declare(self, pool: str, tenant: str, declarations: Sequence[dict[str, Any]], *more: Any) -> None:
        self._own_names(pool, tenant)
        _refuse_many("declarations", declarations, MOST_DECLARATIONS)
        for number, one in enumerate(declarations):
            if not isinstance(one.get("name"), str):
                raise refused(f"declarations[{number}].name", "is not a text")
        names = [one["name"] for one in declarations]
        others = Declaration.objects.filter(tenant=self.tenant, name__in=names).exclude(pool=self.pool)
        taken = sorted(others.values_list("name", flat=True))
        ours = [one for one in declarations if one["name"] not in taken]
        super().declare(self.pool.slug, self.tenant.slug, ours, *more)
        if taken:
            raise LedgerRefused(f"Another pool declares {', '.join(taken[:5])}; an administrator moves them.")

    def declaration_errors(self, tenant: str, names: Sequence[str]) -> dict[str, str]:
        self._own_names("", tenant)
        _refuse_many("names", names, MOST_DECLARATIONS)
        ours = Declaration.objects.filter(tenant=self.tenant, pool=self.pool, name__in=names)
        return super().declaration_errors(self.tenant.slug, list(ours.values_list("name", flat=True)))

    def keep_log(self, run: UUID, claim_seq: int, incarnation: UUID, member: bytes) -> LogPointer:
        self._own_claim(run, claim_seq, incarnation)
        with _refusing_the_log():
            return self.logs.keep(run, claim_seq, self.tenant.slug, incarnation, member)

    def append_log(self, run: UUID, claim_seq: int, incarnation: UUID, offset: int, lines: bytes) -> int:
        self._own_claim(run, claim_seq, incarnation)
        with _refusing_the_log():
            return self.logs.append(run, claim_seq, offset, lines)

    # What is ours.

    def _refuse_crowd(self, info: WorkerInfo) -> None:
        """All tenants of the pool wait for the pass that looks at its workers.

        Nobody can tell who died from who is silent within its lease. What long leases leave behind must not keep
        others out until they are over, so these have room of their own. Two that come at once may be one too many.
        """
        is_long = info.lease > SHORT_LEASE
        alike = Q(lease_seconds__gt=SHORT_LEASE) if is_long else Q(lease_seconds__lte=SHORT_LEASE)
        others = WorkerNode.objects.within_lease().filter(alike, tenant=self.tenant, pool=self.pool)
        size = Func("known_targets", function="cardinality", output_field=IntegerField())
        found = others.exclude(pk=info.incarnation).aggregate(workers=Count("pk"), targets=Sum(size))
        targets = (found["targets"] or 0) + len(info.known_targets)
        if found["workers"] < MOST_WORKERS and targets <= MOST_TARGETS_IN_ALL:
            return
        hint = "start fewer with more slots each, or import fewer tasks; one that died counts until its lease is over"
        if is_long:
            hint += f", and those with a lease of {SHORT_LEASE:g} s or less are counted apart"
        raise Conflict(
            f"{self.tenant} has {found['workers']} workers in the pool {self.pool}, and with this one they would know"
            f" {targets} targets in all: {MOST_WORKERS} workers and {MOST_TARGETS_IN_ALL} targets are the most",
            hint=hint,
        )

    def _own_names(self, pool: str, tenant: str) -> None:
        """A worker need not name them. Another's are unknown, whether they exist or not."""
        if pool not in ("", self.pool.slug):
            raise LedgerRefused(f"This key is for the pool {self.pool.slug!r}: name that one, or none.")
        if tenant not in ("", self.tenant.slug):
            raise LedgerRefused(f"This key is of the tenant {self.tenant.slug!r}: name that one, or none.")

    def _owned(self, incarnations: Iterable[UUID]) -> set[UUID]:
        asked = set(incarnations)
        if unknown := asked - self._looked_up.keys():
            nodes = WorkerNode.objects.filter(tenant=self.tenant, pool=self.pool, pk__in=unknown)
            own = set(nodes.values_list("pk", flat=True))
            self._looked_up.update({incarnation: incarnation in own for incarnation in unknown})
        return {incarnation for incarnation in asked if self._looked_up[incarnation]}

    def _own_lane(self, wanted: Wanted) -> Wanted | None:
        if not 1 <= wanted.most <= MOST_CLAIMS:
            raise refused(
                "wanted.most", f"{wanted.most} is out of range", f"1 to {MOST_CLAIMS}", "out_of_range"
            )
        if wanted.token.int % 256 + wanted.most > 256:
            raise refused(
                "wanted.token", "leaves no room for the tokens of a batch", "let its last byte be zero"
            )
        _refuse_many("wanted.known", wanted.known, MOST_TARGETS)
        if not self._owned([wanted.incarnation]):
            return None
        return replace(wanted, lane=Lane(wanted.lane.id, self.pool.pk, self.tenant.pk, ""))

    def _own_claim(self, run: UUID, claim_seq: int, incarnation: UUID) -> None:
        """What is not ours any more and what never was are refused alike."""
        held = LiveRun.objects.filter(pk=run, claim_seq=claim_seq, worker=incarnation)
        if not held.exists() or not self._owned([incarnation]):
            raise Conflict("this claim is not, or no longer, this worker's")

    def _facts(self, ends: Sequence[End]) -> dict[tuple[UUID, int, UUID], tuple[UUID, bool]]:
        """Job and gate of what is still running. The rest changes nothing, so nothing need be known of it."""
        live = LiveRun.objects.filter(pk__in={end.run_id for end in ends}, worker__isnull=False)
        return {
            (run, claim_seq, worker): (job, gated)
            for run, claim_seq, worker, job, gated in live.values_list(
                "pk", "claim_seq", "worker", "job_id", "gated"
            )
            if worker is not None
        }

    def _with_own_references(self, end: End, owned: set[UUID]) -> End:
        """What the next attempt is given comes from a body: it may refer to what this one was given, and to nothing
        else of its tenant."""
        given = end.outcome.next_input
        if not given or not names_in(given) or end.incarnation not in owned:
            return end
        live = LiveRun.objects.filter(pk=end.run_id, tenant=self.tenant).first()
        spec = JobVersion.objects.filter(job=live.job_id, version=live.version).first() if live else None
        names = names_in(live.input, spec.target) if live and spec else []
        return replace(end, outcome=replace(end.outcome, next_input=defused(given, names)))

    def _ended(self, end: End, facts: dict[tuple[UUID, int, UUID], tuple[UUID, bool]]) -> Ended:
        job, gated = facts.get((end.run_id, end.claim_seq, end.incarnation), (NO_JOB, False))
        claim = claim_of(
            {
                "run_id": str(end.run_id),
                "claim_seq": end.claim_seq,
                "token": str(end.token),
                "incarnation": str(end.incarnation),
                "job_id": str(job),
                "gated": gated,
                "attempt": 0,
                "version": 0,
                "tenant_id": self.tenant.pk,
                "tenant": self.tenant.slug,
                "timeout": 0.0,
                "retry": {},
            }
        )
        # Where the log lies is what we have written down, never what the worker says.
        log = None
        with _at_the_cost_of_the_log():
            log = self.logs.kept(end.run_id, end.claim_seq)
        return Ended(claim, replace(end.outcome, log=log), end.verdict)

    # Django's connection, as a worker has it.

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        connection.ensure_connection()
        raw = connection.connection
        before = raw.cursor_factory
        raw.cursor_factory = WorkerCursor
        try:
            yield raw
        except AWAY as error:
            connection.close()
            raise LedgerUnavailable("the database is not available") from error
        finally:
            raw.cursor_factory = before

    def close(self) -> None:
        """The connection is Django's, which closes it in its own time."""


@contextmanager
def _at_the_cost_of_the_log() -> Iterator[None]:
    """A store that is full or away must not cost the result."""
    try:
        yield
    except OSError:
        logger.exception("the log store failed")


@contextmanager
def _refusing_the_log() -> Iterator[None]:
    """Who brings a log that cannot be kept goes on without it."""
    try:
        yield
    except OSError as error:
        logger.exception("the log store failed")
        raise Conflict("the log store cannot keep this now") from error


def read_member(text: str, field: str) -> bytes:
    try:
        member = base64.b64decode(text, validate=True)
    except ValueError:
        raise refused(field, "is no base64") from None
    check_member(member, field)
    return member


def check_member(member: bytes, field: str) -> None:
    """One gzip member, whole, and no larger when it is unpacked than a log may be: who reads it unpacks it."""
    unpacking = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        lines = unpacking.decompress(member, LARGEST_LOG + 1)
    except zlib.error:
        raise refused(field, "is no gzip member") from None
    if len(lines) > LARGEST_LOG:
        raise refused(field, f"unpacks to more than {LARGEST_LOG} bytes", code="too_large")
    if not unpacking.eof or unpacking.unused_data:
        raise refused(field, "is not one whole gzip member")


def _check(end: End, at: str) -> None:
    outcome, verdict = end.outcome, end.verdict
    if not 0 < end.claim_seq <= HIGHEST_CLAIM_SEQ:
        raise refused(f"{at}.claim_seq", f"{end.claim_seq} is out of range", code="out_of_range")
    if verdict.state not in NEXT_STATES.get(outcome.kind, ()):
        raise refused(f"{at}.verdict.state", f"{verdict.state[:40]!r} does not follow {outcome.kind[:40]!r}")
    if not 0.0 <= verdict.delay <= LONGEST_DELAY:
        raise refused(
            f"{at}.verdict.delay",
            f"{verdict.delay:g} s is out of range",
            f"0 to {LONGEST_DELAY:g}",
            "out_of_range",
        )
    if outcome.error_class is not None and outcome.error_class not in ErrorClass.values:
        raise refused(f"{at}.outcome.error_class", f"{outcome.error_class[:40]!r} is no class of errors")
    if verdict.state == LiveState.WAITING_CALLBACK and not DIGEST.fullmatch(outcome.callback_digest or ""):
        raise refused(f"{at}.outcome.callback_digest", "is no digest", "64 hexadecimal digits")
    if not FINGERPRINT.fullmatch(outcome.fingerprint or ""):
        raise refused(f"{at}.outcome.fingerprint", "is no fingerprint", "up to 32 hexadecimal digits")
    for name in ("result", "next_input"):
        refuse_large(getattr(outcome, name, None), f"{at}.outcome.{name}")


def _refuse_many(field: str, values: Sequence[object], most: int) -> None:
    if len(values) > most:
        raise refused(field, f"{len(values)} are over the limit of {most}", code="too_large")
