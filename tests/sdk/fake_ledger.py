"""A ledger in a file, for tests whose subject is the worker.

Several processes share it, and it can be made unavailable. It keeps the rules a worker relies on: claims by token, and
reports only of claims that are held.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from scheduler_project.sdk.errors import LedgerUnavailable
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

POOL, TENANT = 1, 2
QUEUE = WorkQueue(id=1, pool_id=POOL, tenant_id=TENANT, broker_queue="")
AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


class FakeLedger:
    def __init__(self, folder: str, broker_queue: str = "") -> None:
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.broker_queue = broker_queue

    # The worker's side.

    def register(self, info: WorkerInfo) -> list[WorkQueue]:
        with self._state() as state:
            state["workers"][str(info.incarnation)] = {"beat": 0, "alive": True, "left": False, "held": []}
        return [self.queue]

    def heartbeat(self, beat: Beat) -> HeartbeatResponse:
        with self._state() as state:
            worker = state["workers"].get(str(beat.incarnation))
            if worker is None or not worker["alive"]:
                return HeartbeatResponse(known=False)
            worker.update(
                beat=beat.number,
                held=[str(token) for token in beat.held],
                busy=beat.busy,
                foreign=beat.foreign_busy,
                draining=beat.draining,
                lease=beat.lease,
                beats=worker.get("beats", 0) + 1,
            )
            for run in state["runs"].values():
                if run["token"] in map(str, beat.stopping):
                    run["acknowledged"] = True
            held = {token: self._running(state, token, beat.incarnation) for token in beat.held}
            waiting = any(run["state"] == "queued" for run in state["runs"].values())
            free = beat.slots - beat.busy - beat.foreign_busy
            return HeartbeatResponse(
                known=True,
                cancels=[token for token, run in held.items() if run and run["cancel"]],
                terminates=[token for token, run in held.items() if run and run.get("terminate")],
                gone=[token for token, run in held.items() if run is None],
                queues=[
                    WorkQueue(number, POOL, TENANT, broker_queue)
                    for number, broker_queue in enumerate(state.get("later_broker_queues", []), start=2)
                    if number > beat.queues_after
                ],
                work=[self.queue] if waiting and free > 0 and not state["no_work_named"] else [],
                quiet=state.get("quiet", 0.0) if beat.idle else 0.0,
            )

    def claim(self, request: ClaimRequest, again: bool = False) -> list[Claim]:
        with self._state() as state:
            worker = state["workers"].get(str(request.incarnation))
            if worker is None or not worker["alive"]:
                return []
            found = [self._running(state, token, request.incarnation) for token in request.tokens]
            runs = [run for run in found if run is not None] if again else []
            if not runs:
                # Who knows no targets gets none.
                queued = [
                    run
                    for run in state["runs"].values()
                    if run["state"] == "queued" and request.known_targets
                ]
                runs = queued[: request.limit]
                for run, token in zip(runs, request.tokens, strict=False):
                    run.update(
                        state="running",
                        token=str(token),
                        worker=str(request.incarnation),
                        claim_seq=run["claim_seq"] + 1,
                        attempt=run["attempt"] + 1,
                    )
        claims = [_claim(run) for run in runs]
        if self._kills(claims):
            os.kill(os.getpid(), signal.SIGKILL)
        return claims

    def report(self, ended: Sequence[CompletedClaim], request: ClaimRequest | None = None) -> ReportResult:
        states = [self._end(one) for one in ended]
        return ReportResult(states, self.claim(request) if request else [])

    def _kills(self, claims: Sequence[Claim]) -> bool:
        """Once, whoever claims as many dies before it reads the answer."""
        with self._state() as state:
            kills = 0 < int(state.get("kills_who_claims", 0)) <= len(claims)
            if kills:
                state["kills_who_claims"] = 0
        return kills

    def leave(self, incarnation: UUID) -> None:
        with self._state() as state:
            state["workers"][str(incarnation)].update(left=True, alive=False)

    def declare(self, pool: str, tenant: str, declarations: Sequence[dict[str, Any]]) -> None:
        with self._state() as state:
            state["declared"] = list(declarations)

    def declaration_errors(self, tenant: str, names: Sequence[str]) -> dict[str, str]:
        return {}

    # The test's side.

    @property
    def url(self) -> str:
        return (
            f"python://tests.sdk.fake_ledger/FakeLedger?folder={self.folder}&broker_queue={self.broker_queue}"
        )

    @property
    def queue(self) -> WorkQueue:
        return WorkQueue(1, POOL, TENANT, self.broker_queue)

    def add_run(self, task: str = "tests.succeeds", *args: Any, **options: Any) -> UUID:
        kind = options.pop("kind", "celery")
        target = {"kind": kind, "task": task, "args": list(args), "kwargs": {}, **options.pop("target", {})}
        run_id = uuid4()
        run = {
            "run_id": str(run_id),
            "state": "queued",
            "claim_seq": 0,
            "attempt": 0,
            "losses": 0,
            "input": None,
            "token": None,
            "worker": None,
            "cancel": False,
            "target": target,
            "timeout": options.pop("timeout", 60.0),
            "ends": [],
            "retry": {"max_attempts": 4, "backoff": "fixed", "base": 0.0, "cap": 0.0},
        }
        with self._state() as state:
            state["runs"][str(run_id)] = {**run, **options}
        return run_id

    def run(self, run_id: UUID) -> dict[str, Any]:
        with self._state() as state:
            return dict(state["runs"][str(run_id)])

    def ends(self, run_id: UUID) -> list[dict[str, Any]]:
        return list(self.run(run_id)["ends"])

    def workers(self) -> dict[str, dict[str, Any]]:
        with self._state() as state:
            return dict(state["workers"])

    def change(self, **values: Any) -> None:
        with self._state() as state:
            state.update(values)

    def change_run(self, run_id: UUID, **values: Any) -> None:
        with self._state() as state:
            state["runs"][str(run_id)].update(values)

    def lose_workers(self) -> None:
        """Recover the claims of silent workers, as the platform does."""
        with self._state() as state:
            for worker in state["workers"].values():
                worker["alive"] = False
            for run in state["runs"].values():
                if run["state"] == "running":
                    run.update(state="queued", token=None, worker=None)

    def declared(self) -> list[dict[str, Any]]:
        with self._state() as state:
            return list(state["declared"])

    @property
    def away(self) -> Path:
        return self.folder / "away"

    def _running(self, state: dict[str, Any], token: UUID, incarnation: UUID) -> dict[str, Any] | None:
        for run in state["runs"].values():
            if (run["state"], run["token"], run["worker"]) == ("running", str(token), str(incarnation)):
                found: dict[str, Any] = run
                return found
        return None

    def _end(self, one: CompletedClaim) -> str | None:
        claim = one.claim
        end = {**json.loads(json.dumps(asdict(one.outcome), default=str)), "next": one.verdict.state}
        with self._state() as state:
            run = state["runs"][str(claim.run_id)]
            for earlier in run["ends"]:
                if earlier["claim_seq"] == claim.claim_seq:
                    return str(earlier["next"])
            mine = ("running", claim.claim_seq, str(claim.incarnation))
            if (run["state"], run["claim_seq"], run["worker"]) != mine:
                return None
            if end["next"] != "succeeded" and run["cancel"]:
                end["next"] = "cancelled"
            run["ends"].append({**end, "claim_seq": claim.claim_seq})
            again = {"delayed": "queued", "ready": "queued"}
            run.update(state=again.get(end["next"], end["next"]), token=None, worker=None)
            if end["next"] == "ready":
                run["attempt"] -= 1
            elif end["error_class"] == "worker_lost":
                run["losses"] += 1
            run["input"] = end["next_input"] or run["input"]
            return str(end["next"])

    @contextmanager
    def _state(self) -> Iterator[dict[str, Any]]:
        with open(self.folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.away.exists() and os.environ.get("BEATKEEPER_TEST_SIDE") != str(os.getpid()):
                raise LedgerUnavailable("away")
            path = self.folder / "state.json"
            empty = {"runs": {}, "workers": {}, "declared": [], "no_work_named": False}
            state = json.loads(path.read_text()) if path.exists() else empty
            yield state
            path.write_text(json.dumps(state))


def _claim(run: dict[str, Any]) -> Claim:
    return Claim(
        run_id=UUID(run["run_id"]),
        claim_seq=run["claim_seq"],
        token=UUID(run["token"]),
        incarnation=UUID(run["worker"]),
        attempt=run["attempt"],
        job_id=UUID(int=1),
        job_name="a job",
        version=1,
        tenant_id=TENANT,
        tenant="team",
        trigger="manual",
        planned_at=AT,
        claimed_at=AT,
        target=run["target"],
        input=run.get("input"),
        timeout=run["timeout"],
        retry=run["retry"],
        gated=False,
        allowed_hosts=run.get("allowed_hosts", []),
        losses=run["losses"],
    )
