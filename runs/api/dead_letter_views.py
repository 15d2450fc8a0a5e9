"""The dead-letter desk over HTTP."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.authentication import tenant_of
from jobs.api.representation import BASE, instant
from jobs.api.views import answer_once, paged, read_given, read_id, read_reason, refuse_unknown_query
from jobs.idempotency import Answer
from jobs.input_checks import Json, expect_object, listed, refuse_unknown, refused, shown
from jobs.models import Job, Role
from jobs.refusals import Missing, Refused
from runs import dead_letters, redrives
from runs.api import dead_letter_schema as schema
from runs.dead_letters import MOST_DISMISSED, MOST_GROUPS, Group
from runs.models import DeadLetter, Decision, Redrive, RedriveState

DECISIONS = {
    "open": Decision.OPEN,
    "redriven": Decision.REDRIVEN,
    "dismissed": Decision.DISMISSED,
}
DEFAULT_PACE = 60


class DeadGroups(APIView):
    @schema.list_groups
    def get(self, request: Request) -> Response:
        refuse_unknown_query(request, ())
        tenant = tenant_of(request)
        found = dead_letters.groups([tenant.pk])
        on_their_way = Redrive.objects.filter(tenant=tenant, state=RedriveState.WORKING)
        under_way = {redrive.fingerprint: redrive for redrive in on_their_way}
        jobs = dead_letters.jobs_of(found)
        groups = [group_json(group, jobs, under_way.get(group.fingerprint)) for group in found]
        return Response({"results": groups, "more": len(found) >= MOST_GROUPS})


class DeadGroup(APIView):
    newest_first = ("died_at", "run_id")

    @schema.list_letters
    def get(self, request: Request, fingerprint: str) -> Response:
        refuse_unknown_query(request, ("decision", "job", "limit", "cursor"))
        letters = self.letters(request, fingerprint)
        return paged(self, request, letters, lambda page: letters_json(page))

    def letters(self, request: Request, fingerprint: str) -> QuerySet[DeadLetter]:
        asked = request.query_params.get("decision", "open")
        if asked not in DECISIONS:
            raise refused("decision", f"{shown(asked)} is not a decision", listed(DECISIONS, "one of"))
        letters = DeadLetter.objects.filter(
            tenant=tenant_of(request), fingerprint=read_fingerprint(fingerprint)
        )
        if job := request.query_params.get("job"):
            letters = letters.filter(job_id=read_id(job))
        return letters.filter(decision=DECISIONS[asked])


class RedriveRuns(APIView):
    write_role = Role.OPERATOR

    @schema.redrive_runs
    def post(self, request: Request) -> Response:
        given = read_given(request.data, ("runs", "input", "reason"))
        ids = read_ids(given.get("runs"))

        def act() -> Answer:
            done = dead_letters.redrive(tenant_of(request), ids, given.get("input"), reason=given["reason"])
            made = [{"run": str(dead), "new_run": str(run.pk)} for dead, run in done.runs.items()]
            return Answer(200, {"redriven": made, "refused": refused_json(done.refused)})

        return answer_once(request, act)


class DismissRuns(APIView):
    write_role = Role.OPERATOR

    @schema.dismiss_runs
    def post(self, request: Request) -> Response:
        given = expect_object(request.data, "")
        refuse_unknown(given, ("runs", "note"), "")
        note, ids = read_note(given), read_ids(given.get("runs"))
        done = dead_letters.dismiss(tenant_of(request), ids, note)
        return Response({"dismissed": len(done.runs), "more": False, "refused": refused_json(done.refused)})


class RedriveGroup(APIView):
    write_role = Role.OPERATOR

    @schema.redrive_group
    def post(self, request: Request, fingerprint: str) -> Response:
        given = read_given(request.data, ("per_minute", "input", "reason"))
        pace = given.get("per_minute", DEFAULT_PACE)

        def act() -> Answer:
            tenant = tenant_of(request)
            redrive = redrives.start(
                tenant, read_fingerprint(fingerprint), pace, given.get("input"), given["reason"]
            )
            return Answer(201, redrive_json(redrive))

        return answer_once(request, act)


class DismissGroup(APIView):
    write_role = Role.OPERATOR

    @schema.dismiss_group
    def post(self, request: Request, fingerprint: str) -> Response:
        given = expect_object(request.data, "")
        refuse_unknown(given, ("note",), "")
        group, note = read_fingerprint(fingerprint), read_note(given)
        count = dead_letters.dismiss_group(tenant_of(request), group, note)
        return Response({"dismissed": count, "more": count >= MOST_DISMISSED, "refused": []})


class Redrives(APIView):
    newest_first = ("created_at", "id")

    @schema.list_redrives
    def get(self, request: Request) -> Response:
        refuse_unknown_query(request, ("limit", "cursor"))
        found = Redrive.objects.filter(tenant=tenant_of(request))
        return paged(self, request, found, lambda page: [redrive_json(redrive) for redrive in page])


class OneRedrive(APIView):
    @schema.read_redrive
    def get(self, request: Request, redrive_id: str) -> Response:
        return Response(redrive_json(find_redrive(request, redrive_id)))


class StopRedrive(APIView):
    write_role = Role.OPERATOR

    @schema.stop_redrive
    def post(self, request: Request, redrive_id: str) -> Response:
        reason = read_reason(request.data)
        return Response(redrive_json(redrives.stop(find_redrive(request, redrive_id), reason)))


def find_redrive(request: Request, redrive_id: str) -> Redrive:
    found = Redrive.objects.filter(tenant=tenant_of(request), pk=read_id(redrive_id)).first()
    if found is None:
        raise Missing(f"there is no redrive {redrive_id[:60]}")
    return found


def read_fingerprint(text: str) -> str:
    """No group has one that the database could not keep, and it refuses to look for it."""
    if "\x00" in text:
        raise Missing(f"there is no group {text[:40]!r}", hint="fingerprints are in the list of dead letters")
    return text


def read_ids(given: object) -> list[UUID]:
    if not isinstance(given, list) or not given:
        raise refused("runs", f"{shown(given)} is not a list of runs", 'such as {"runs": ["…"]}')
    try:
        return [UUID(value) for value in given]
    except (ValueError, TypeError, AttributeError):
        raise refused("runs", f"not all of {shown(given)} are ids", "ids are UUIDs") from None


def read_note(given: Json) -> str:
    """Whoever reads of it later wants to know why."""
    note = given.get("note")
    if not isinstance(note, str) or not note.strip() or len(note) > 500:
        raise refused("note", f"{shown(note)} is not a note", "say why, in at most 500 characters")
    return note


def group_json(group: Group, jobs: dict[UUID, Job], redrive: Redrive | None) -> Json:
    own = f"{BASE}/dead-letters/{group.fingerprint}"
    named = sorted((jobs[job] for job in group.jobs if job in jobs), key=lambda job: job.name)
    return {
        "fingerprint": group.fingerprint,
        "count": group.size,
        "more": group.more,
        "first_seen_at": instant(group.first_at),
        "last_seen_at": instant(group.last_at),
        "error": error_json(group),
        "jobs": [{"id": str(job.pk), "name": job.name} for job in named],
        "redrive": redrive_json(redrive) if redrive else None,
        "links": {"self": own, "redrive": f"{own}/redrive", "dismiss": f"{own}/dismiss"},
    }


def letters_json(letters: Sequence[DeadLetter]) -> list[Json]:
    jobs = Job.objects.in_bulk({letter.job_id for letter in letters})
    return [letter_json(letter, jobs.get(letter.job_id)) for letter in letters]


def letter_json(letter: DeadLetter, job: Job | None) -> Json:
    links = {"run": f"{BASE}/runs/{letter.run_id}"}
    if letter.redriven_as:
        links["redriven_as"] = f"{BASE}/runs/{letter.redriven_as}"
    return {
        "run": str(letter.run_id),
        "job": str(letter.job_id),
        "job_name": job.name if job else "",
        "fingerprint": letter.fingerprint,
        "died_at": instant(letter.died_at),
        "error": error_json(letter),
        "decision": letter.decision,
        "decided_at": instant(letter.decided_at),
        "decided_by": letter.decided_by,
        "note": letter.note,
        "redriven_as": str(letter.redriven_as) if letter.redriven_as else None,
        "links": links,
    }


def error_json(died: Any) -> Json:
    return {"class": died.error_class, "type": died.error_type, "line": died.error_line}


def refused_json(refusals: dict[UUID, Refused]) -> list[Json]:
    return [
        {"run": str(run), "code": refusal.code, "detail": refusal.detail, "hint": refusal.hint}
        for run, refusal in refusals.items()
    ]


def redrive_json(redrive: Redrive) -> Json:
    own = f"{BASE}/redrives/{redrive.pk}"
    return {
        "id": str(redrive.pk),
        "fingerprint": redrive.fingerprint,
        "per_minute": redrive.per_minute,
        "state": redrive.state,
        "made": redrive.made,
        "left": redrives.left(redrive),
        "refused": redrive.refused,
        "last_refusal": redrive.last_refusal,
        "input": redrive.input,
        "reason": redrive.reason,
        "requested_by": redrive.requested_by,
        "created_at": instant(redrive.created_at),
        "ended_at": instant(redrive.ended_at),
        "ended_by": redrive.ended_by,
        "links": {
            "self": own,
            "stop": f"{own}/stop",
            "group": f"{BASE}/dead-letters/{redrive.fingerprint}",
        },
    }
