"""Runs over HTTP: parse, call the service, render."""

import json
import re
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import instants
from jobs.api.authentication import tenant_of
from jobs.api.views import answer_once, find_job, paged, read_id, read_reason, refuse_unknown_query
from jobs.idempotency import Answer
from jobs.input_checks import expect_object, listed, refuse_unknown, refused, shown
from jobs.models import Role
from jobs.refusals import Missing
from runs import callbacks, run_logs, services
from runs.api import schema
from runs.api.representation import attempt_json, live_of, run_json, running_attempt_json
from runs.models import Run, WorkerNode
from runs.states import FinalState, LiveState, Trigger
from scheduler_project.sdk.ids import EPOCH, id_range

UNDER_WAY = (LiveState.RUNNING, LiveState.WAITING_CALLBACK)
FILTERS = ("state", "trigger", "planned_after", "planned_before", "limit", "cursor")
FAR = datetime(9999, 1, 1, tzinfo=UTC)


class RunList(APIView):
    # The id begins with the planned time: newest first is one column, and a range of it prunes partitions.
    newest_first = ("id",)

    def answer(self, request: Request, runs: QuerySet[Run]) -> Response:
        return paged(self, request, _filtered(runs, request), lambda page: [run_json(run) for run in page])


class Runs(RunList):
    @schema.list_runs
    def get(self, request: Request) -> Response:
        refuse_unknown_query(request, ("job", *FILTERS))
        runs = runs_of(request)
        if job := request.query_params.get("job"):
            try:
                runs = runs.filter(job_id=read_id(job))
            except Missing:
                raise refused("job", f"{shown(job)} is not an id", "ids are UUIDs") from None
        return self.answer(request, runs)


class RunsOfJob(RunList):
    @schema.list_runs_of_job
    def get(self, request: Request, job_id: str) -> Response:
        refuse_unknown_query(request, FILTERS)
        return self.answer(request, runs_of(request).filter(job=find_job(request, job_id)))


class RunJob(APIView):
    write_role = Role.OPERATOR

    @schema.run_job
    def post(self, request: Request, job_id: str) -> Response:
        job = find_job(request, job_id)
        body = expect_object(request.data, "")
        refuse_unknown(body, ("input", "reason"), "")
        reason = read_reason({"reason": body.get("reason", "")})
        token = request_token(request)
        return answer_once(
            request,
            lambda: _created(services.run_now(job, body.get("input"), request=token, reason=reason)),
        )


class OneRun(APIView):
    @schema.read_run
    def get(self, request: Request, run_id: str) -> Response:
        return Response(run_json(find_run(request, run_id)))


class Attempts(APIView):
    @schema.list_attempts
    def get(self, request: Request, run_id: str) -> Response:
        run = find_run(request, run_id)
        finished = run_logs.attempts_of(run)
        results = [attempt_json(attempt) for attempt in finished]
        live = live_of(run)
        known = {attempt.claim_seq for attempt in finished}
        if live and live.state in UNDER_WAY and live.claim_seq not in known:
            node = WorkerNode.objects.filter(incarnation=live.worker).first() if live.worker else None
            results.append(running_attempt_json(live, node.name if node else str(live.worker)))
        return Response({"results": results})


class CancelRun(APIView):
    write_role = Role.OPERATOR

    @schema.cancel_run
    def post(self, request: Request, run_id: str) -> Response:
        reason = read_reason(request.data)
        return Response(run_json(services.cancel_run(find_run(request, run_id), reason)))


class CompleteRun(APIView):
    """For the target of a run, which has no key of ours: the token of its attempt is all it needs."""

    authentication_classes = ()
    permission_classes = ()

    @schema.complete_run
    def post(self, request: Request, run_id: str) -> Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        try:
            run = UUID(run_id)
        except ValueError:
            run = UUID(int=0)
        return Response(
            callbacks.complete(run, token.strip() if scheme.lower() == "bearer" else "", request.data)
        )


class RetryRun(APIView):
    write_role = Role.OPERATOR

    @schema.retry_run
    def post(self, request: Request, run_id: str) -> Response:
        run, reason = find_run(request, run_id), read_reason(request.data)
        token = request_token(request)

        def act() -> Answer:
            retry = services.retry_run(run, request=token, reason=reason)
            return Answer(200, run_json(retry)) if retry.pk == run.pk else _created(retry)

        return answer_once(request, act)


class RunLog(APIView):
    @schema.read_log
    def get(self, request: Request, run_id: str) -> HttpResponse:
        refuse_unknown_query(request, ("attempt", "format"))
        run = find_run(request, run_id)
        form = request.query_params.get("format", "text")
        if form not in ("text", "jsonl"):
            raise refused("format", f"{shown(form)} is not a format", "text or jsonl")
        lines = run_logs.lines(_read_log(run, request.query_params.get("attempt")))
        if form == "jsonl":
            text = "".join(json.dumps(line._asdict(), ensure_ascii=False) + "\n" for line in lines)
            return HttpResponse(text, content_type="application/x-ndjson")
        return HttpResponse(
            "".join(line.text + "\n" for line in lines), content_type="text/plain; charset=utf-8"
        )


def runs_of(request: Request) -> QuerySet[Run]:
    return Run.objects.select_related("job", "live").filter(tenant=tenant_of(request))


def find_run(request: Request, run_id: str) -> Run:
    run = runs_of(request).filter(pk=read_id(run_id)).first()
    if run is None:
        raise Missing(f"there is no run {run_id[:60]}")
    return run


def request_token(request: Request) -> bytes:
    """Tells two requests of one millisecond apart, and makes two with one Idempotency-Key the same."""
    key = request.headers.get("Idempotency-Key", "")
    return sha256(f"{tenant_of(request).pk} {key}".encode()).digest() if key else b""


def _created(run: Run) -> Answer:
    return Answer(201, run_json(run))


def _filtered(runs: QuerySet[Run], request: Request) -> QuerySet[Run]:
    given = request.query_params
    if states := given.getlist("state"):
        runs = runs.filter(_in_states(states))
    if trigger := given.get("trigger"):
        if trigger not in Trigger.values:
            raise refused("trigger", f"{shown(trigger)} is not a trigger", listed(Trigger.values, "one of"))
        runs = runs.filter(trigger=trigger)
    after, before = _instant(given, "planned_after", EPOCH), _instant(given, "planned_before", FAR)
    if "planned_after" in given or "planned_before" in given:
        first, beyond = id_range(after, before)
        runs = runs.filter(id__gte=first, id__lt=beyond)
    return runs


def _in_states(states: list[str]) -> Q:
    for state in states:
        if state not in (*LiveState.values, *FinalState.values):
            allowed = listed((*LiveState.values, *FinalState.values), "one of")
            raise refused("state", f"{shown(state)} is not a state", allowed)
    final = [state for state in states if state in FinalState.values]
    under_way = [state for state in states if state in LiveState.values]
    if not under_way:
        return Q(state__in=final)
    if not final:
        return Q(live__state__in=under_way)
    return Q(state__in=final) | Q(live__state__in=under_way)


def _instant(given: Any, name: str, default: datetime) -> datetime:
    if name not in given:
        return default
    # In a query a plus sign that was not escaped arrives as a space.
    text = re.sub(r" (\d\d:\d\d)$", r"+\1", given[name])
    return instants.read(text, name)


def _read_log(run: Run, attempt: str | None) -> bytes:
    if attempt is not None and not (attempt.isascii() and attempt.isdigit() and len(attempt) < 10):
        raise refused("attempt", f"{shown(attempt)} is not the number of an attempt", "1, 2, 3, …")
    try:
        return run_logs.read_log(run, int(attempt) if attempt else None)
    except run_logs.NoSuchAttempt:
        raise Missing(f"the run has no attempt {attempt}") from None
    except run_logs.LogMissing:
        raise Missing("the log is no longer in the store") from None
