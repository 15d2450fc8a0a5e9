"""Serve runs: list, read, start, cancel and retry them."""

from hashlib import sha256
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_field, extend_schema_view
from rest_framework import serializers
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.authentication import tenant_of
from jobs.api.idempotency import StoredResponse
from jobs.api.jobs import find_job
from jobs.api.openapi import creation, operation
from jobs.api.requests import answer_once, instant, read_id
from jobs.api.serializers import (
    BodySerializer,
    GivenInstantField,
    InstantField,
    LinksField,
    PlainField,
    ReasonField,
    ReasonSerializer,
)
from jobs.api.views import ResourceViewSet
from jobs.models import Role
from jobs.validation.rows import first_or_missing
from jobs.validation.schema import MAYBE_INSTANT, text
from runs import history
from runs.api.run_filters import RunFilters, RunOfJobFilters
from runs.api.serializers import ERROR, RUN_INPUT, EndErrorField, RunInputField, RunStateSerializer
from runs.models import Run
from runs.services import runs as services
from runs.services.explain import live_rows, note_waiting
from runs.states import LiveState, Trigger


class KeptInstantField(InstantField):
    """Write an instant of the live row, or of the run once it has ended."""

    def get_attribute(self, instance: Run) -> Any:
        return super().get_attribute(instance.live_or_none or instance)


class RunSerializer(RunStateSerializer):
    job = serializers.UUIDField(source="job_id")
    job_name = serializers.CharField(source="job.name")
    version = serializers.IntegerField(help_text="Of the job: what the run executes.")
    trigger = PlainField(text(enum=list(Trigger.values)))
    planned_at = InstantField()
    created_at = InstantField()
    queued_at = KeptInstantField(allow_null=True, help_text="When its last attempt was offered to workers.")
    started_at = KeptInstantField(allow_null=True)
    finished_at = InstantField(allow_null=True)
    cancel_requested_at = KeptInstantField(allow_null=True)
    cancel_acknowledged_at = KeptInstantField(
        allow_null=True, help_text="When its worker asked the body to stop; null: none did."
    )
    callback_expires_at = serializers.SerializerMethodField()
    next_attempt_at = serializers.SerializerMethodField()
    attempt = serializers.SerializerMethodField(help_text="Tries so far.")
    priority = serializers.IntegerField()
    input = RunInputField({"type": "object", "nullable": True})
    result = PlainField({"nullable": True, "description": "Any JSON."})
    exit_code = serializers.IntegerField(allow_null=True, help_text="Of a command; 0: it succeeded.")
    error = EndErrorField(ERROR)
    retry_of = serializers.UUIDField(allow_null=True)
    requested_by = serializers.CharField()
    requested_reason = serializers.CharField(help_text="Given when it was run now, retried or redriven.")
    links = LinksField(
        ("retry_of",),
        self=lambda run: f"/runs/{run.text_id}",
        job=lambda run: f"/jobs/{run.job_id}",
        version=lambda run: f"/jobs/{run.job_id}/versions/{run.version}",
        explain=lambda run: f"/runs/{run.text_id}/explain",
        attempts=lambda run: f"/runs/{run.text_id}/attempts",
        log=lambda run: f"/runs/{run.text_id}/log",
        retry_of=lambda run: run.retry_of and f"/runs/{run.retry_of}",
    )

    @extend_schema_field({**MAYBE_INSTANT, "description": "Until then its target may report the outcome."})
    def get_callback_expires_at(self, run: Run) -> str | None:
        return self._wakes_at(run, LiveState.WAITING_CALLBACK)

    @extend_schema_field(MAYBE_INSTANT)
    def get_next_attempt_at(self, run: Run) -> str | None:
        return self._wakes_at(run, LiveState.DELAYED)

    def get_attempt(self, run: Run) -> int:
        live = run.live_or_none
        return live.attempt if live else run.attempts

    def _wakes_at(self, run: Run, state: LiveState) -> str | None:
        live = run.live_or_none
        return instant(live.wake_at) if live and live.state == state else None


class RunBodySerializer(BodySerializer):
    input = PlainField(RUN_INPUT, required=False)
    at = GivenInstantField(
        required=False,
        allow_null=True,
        help_text="When it goes; null or left out: now. Of the present version.",
    )
    reason = ReasonField("Kept as `requested_reason` of the run, and in the audit trail.")


@extend_schema_view(
    list=operation("list_runs", "Runs, newest first", errors=(400,)),
    retrieve=operation("read_run", "Read a run", errors=(404,)),
)
class Runs(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    tag = "runs"
    write_role = Role.OPERATOR
    filterset_class = RunFilters
    # The id begins with the planned time: newest first is one column, and a range of it prunes partitions.
    newest_first = ("id",)
    queryset = history.runs()
    serializer_class = RunSerializer

    def get_object(self) -> Run:
        return find_run(self.request, self.kwargs["run_id"])

    def paginate_queryset(self, queryset: Any) -> Any:
        page = super().paginate_queryset(queryset)
        note_waiting(live_rows(page or []))
        return page

    def read_page(self, ordered: Any, count: int, start: list[Any], backwards: bool) -> list[Run]:
        return history.read_page(ordered, count, start[0] if start else None, backwards)

    @operation(
        "cancel_run",
        "Cancel a run",
        takes=ReasonSerializer,
        errors=(400, 404, 409),
        about="One that no worker has ends at once; a running one is stopped by its worker.",
    )
    def cancel(self, request: Request, **_: Any) -> Response:
        reason = ReasonSerializer.read(request)["reason"]
        return self.answer(services.cancel_run(self.get_object(), reason))

    @creation(
        "retry_run",
        "Retry a run",
        takes=ReasonSerializer,
        repeated=200,
        errors=(400, 404, 409, 422),
        about="A finished run stays as it is: the retry is a new run of the same version and input. A run that waits "
        "for its back-off goes now; then the answer is that run, with status 200.",
    )
    def retry(self, request: Request, **_: Any) -> Response:
        run, reason = self.get_object(), ReasonSerializer.read(request)["reason"]
        token = request_token(request)

        def act() -> StoredResponse:
            retry = services.retry_run(run, request=token, reason=reason)
            return StoredResponse(200 if retry.pk == run.pk else 201, self.get_serializer(retry).data)

        return answer_once(request, act)


@extend_schema_view(list=operation("list_runs_of_job", "Runs of a job, newest first", errors=(400, 404)))
class RunsOfJob(Runs):
    tag = "jobs"
    filterset_class = RunOfJobFilters

    def get_queryset(self) -> QuerySet[Run]:
        return super().get_queryset().filter(job=find_job(self.request, self.kwargs["job_id"]))

    @creation(
        "run_job",
        "Run a job now, or later",
        takes=RunBodySerializer,
        errors=(400, 404, 409, 422),
        about="With `at` it waits as `delayed` until then; a cancel ends it, and a retry lets it go at once.",
    )
    def start(self, request: Request, job_id: str) -> Response:
        job, given = find_job(request, job_id), RunBodySerializer.read(request)
        more = {"at": given.get("at"), "request": request_token(request), "reason": given["reason"]}
        return self.create_once(lambda: services.run_now(job, given.get("input"), **more))


def find_run(request: Request, run_id: str) -> Run:
    runs = history.runs().of(tenant_of(request)).filter(pk=read_id(run_id))
    return first_or_missing(runs, f"there is no run {run_id[:60]}")


def request_token(request: Request) -> bytes:
    """Return what tells two requests of one millisecond apart, and is the same for one Idempotency-Key."""
    key = request.headers.get("Idempotency-Key", "")
    return sha256(f"{tenant_of(request).pk} {key}".encode()).digest() if key else b""
