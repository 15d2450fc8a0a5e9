"""Pauses and blackouts over HTTP: a tenant's own, and those of the platform to look at."""

from datetime import datetime
from typing import ClassVar

from django.db.models import QuerySet
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import stops
from jobs.api import stop_schema as schema
from jobs.api.authentication import tenant_of
from jobs.api.representation import BASE, instant
from jobs.api.views import answer_once, paged, read_reason, refuse_unknown_query
from jobs.database_clock import database_now
from jobs.idempotency import Answer
from jobs.input_checks import Json, listed, refused, shown
from jobs.models import Role, Stop, StopKind
from jobs.refusals import Missing

PLATFORM = "the platform"


class OfOneKind(APIView):
    write_role = Role.OPERATOR
    kind: ClassVar[StopKind]

    def find(self, request: Request, stop_id: str) -> Stop:
        key = int(stop_id) if stop_id.isascii() and stop_id.isdigit() and len(stop_id) < 10 else 0
        stop = self.seen(request).filter(pk=key).first()
        if stop is None:
            raise Missing(f"there is no {self.kind} {stop_id[:60]}")
        return stop

    def find_own(self, request: Request, stop_id: str) -> Stop:
        stop = self.find(request, stop_id)
        if stop.tenant_id is None:
            raise PermissionDenied(f"this {self.kind} is of the platform: only its operators change it")
        return stop

    def seen(self, request: Request) -> QuerySet[Stop]:
        return stops.seen_by(tenant_of(request)).filter(kind=self.kind)


class AllStops(OfOneKind):
    newest_first = ("created_at", "id")

    def list(self, request: Request) -> Response:
        refuse_unknown_query(request, ("state", "limit", "cursor"))
        now = database_now()
        found = self.seen(request)
        if state := request.query_params.get("state"):
            if state not in stops.STATES:
                raise refused("state", f"{shown(state)} is not a state", listed(stops.STATES, "one of"))
            found = found.filter(stops.in_state(state, now))
        return paged(self, request, found, lambda page: [stop_json(stop, now) for stop in page])

    def create(self, request: Request) -> Response:
        def act() -> Answer:
            stop = stops.create_stop(self.kind, request.data, tenant=tenant_of(request))
            return Answer(201, stop_json(stop, database_now()))

        return answer_once(request, act)


class OneStop(OfOneKind):
    def show(self, request: Request, stop_id: str) -> Response:
        return shown_stop(self.find(request, stop_id))

    def edit(self, request: Request, stop_id: str) -> Response:
        return shown_stop(stops.edit_stop(self.find_own(request, stop_id), request.data))

    def remove(self, request: Request, stop_id: str) -> Response:
        stops.delete_stop(self.find_own(request, stop_id))
        return Response(status=204)


class Lift(OfOneKind):
    def lift(self, request: Request, stop_id: str) -> Response:
        stop = self.find_own(request, stop_id)
        return shown_stop(stops.lift_stop(stop, read_reason(request.data)))


class Pauses(AllStops):
    kind = StopKind.PAUSE

    @schema.list_pauses
    def get(self, request: Request) -> Response:
        return self.list(request)

    @schema.create_pause
    def post(self, request: Request) -> Response:
        return self.create(request)


class OnePause(OneStop):
    kind = StopKind.PAUSE

    @schema.read_pause
    def get(self, request: Request, stop_id: str) -> Response:
        return self.show(request, stop_id)

    @schema.edit_pause
    def patch(self, request: Request, stop_id: str) -> Response:
        return self.edit(request, stop_id)

    @schema.delete_pause
    def delete(self, request: Request, stop_id: str) -> Response:
        return self.remove(request, stop_id)


class LiftPause(Lift):
    kind = StopKind.PAUSE

    @schema.lift_pause
    def post(self, request: Request, stop_id: str) -> Response:
        return self.lift(request, stop_id)


class Blackouts(AllStops):
    kind = StopKind.BLACKOUT

    @schema.list_blackouts
    def get(self, request: Request) -> Response:
        return self.list(request)

    @schema.create_blackout
    def post(self, request: Request) -> Response:
        return self.create(request)


class OneBlackout(OneStop):
    kind = StopKind.BLACKOUT

    @schema.read_blackout
    def get(self, request: Request, stop_id: str) -> Response:
        return self.show(request, stop_id)

    @schema.edit_blackout
    def patch(self, request: Request, stop_id: str) -> Response:
        return self.edit(request, stop_id)

    @schema.delete_blackout
    def delete(self, request: Request, stop_id: str) -> Response:
        return self.remove(request, stop_id)


class LiftBlackout(Lift):
    kind = StopKind.BLACKOUT

    @schema.lift_blackout
    def post(self, request: Request, stop_id: str) -> Response:
        return self.lift(request, stop_id)


def shown_stop(stop: Stop) -> Response:
    return Response(stop_json(stop, database_now()))


def stop_json(stop: Stop, now: datetime) -> Json:
    """Of the platform's own a tenant reads what it does, not which person made it."""
    own = stop.tenant_id is not None
    return {
        "id": stop.pk,
        "tag": stops.tag_of(stop),
        "pool": stop.pool.slug if stop.pool else None,
        "everything": not stop.tag_name and stop.pool is None,
        "concerns": stops.in_words(stop),
        "effect": stop.effect,
        "note": stop.note,
        "state": stops.state_of(stop, now),
        "begins_at": instant(stop.begins_at),
        "ends_at": instant(stop.ends_at),
        "lifted_at": instant(stop.lifted_at),
        "lifted_by": stop.lifted_by if own or not stop.lifted_at else PLATFORM,
        "created_by": stop.created_by if own else PLATFORM,
        "created_at": instant(stop.created_at),
        "own": own,
        "links": {"self": f"{BASE}/{stop.kind}s/{stop.pk}"},
    }
