"""Serve the versions of a job: what each executes, and what each edit changed."""

from collections.abc import Iterable, Iterator
from typing import Any

from django.db.models import QuerySet
from django.utils.functional import cached_property
from drf_spectacular.utils import extend_schema_field, extend_schema_view
from rest_framework import serializers
from rest_framework.generics import RetrieveAPIView

from auditlog.redaction import redact
from jobs.api.jobs import find_job, schedule_description, sees_secrets
from jobs.api.openapi import operation
from jobs.api.serializers import InstantField, LinksField
from jobs.api.views import ListView, ResourceView
from jobs.models import Job, JobVersion
from jobs.spec.fields import FIELDS
from jobs.validation.checks import Json
from jobs.validation.rows import first_or_missing
from jobs.validation.schema import number, obj, text

MAX_VERSION = 999_999_999
SPEC = {
    "type": "object",
    "additionalProperties": True,
    "description": "The fields of that version, as they can be sent again.",
}
CHANGES = {
    "type": "array",
    "description": "Against the version before it; of the first one: none.",
    "items": obj(
        {
            "field": text("Such as `schedule.cron`."),
            "before": {"nullable": True, "description": "Null: it was not there."},
            "after": {"nullable": True, "description": "Null: it is not there any more."},
        },
        required=("field", "before", "after"),
        title="VersionChange",
    ),
}


class VersionSerializer(serializers.Serializer[JobVersion]):
    version = serializers.IntegerField()
    created_at = InstantField()
    created_by = serializers.CharField()
    schedule_description = serializers.SerializerMethodField()
    spec = serializers.SerializerMethodField()
    changes = serializers.SerializerMethodField()
    links = LinksField(
        self=lambda version: f"/jobs/{version.job_id}/versions/{version.version}",
        job=lambda version: f"/jobs/{version.job_id}",
    )

    def get_schedule_description(self, version: JobVersion) -> str:
        return schedule_description(version)

    @extend_schema_field(SPEC)
    def get_spec(self, version: JobVersion) -> Json:
        return self._shown(spec_of(version))

    @extend_schema_field(CHANGES)
    def get_changes(self, version: JobVersion) -> list[Json]:
        earlier: JobVersion | None = self.context["view"].earlier.get(version.version - 1)
        if earlier is None:
            return []
        before, after = spec_of(earlier), spec_of(version)
        before = {name: value for name, value in before.items() if name in after}
        after = {name: value for name, value in after.items() if name in before}
        # Compared as they are: a changed secret is a change, whoever reads it.
        shown_before, shown_after = self._shown(before), self._shown(after)
        return [
            {"field": ".".join(path), "before": part(shown_before, path), "after": part(shown_after, path)}
            for path in changed_paths(before, after)
        ]

    def _shown(self, spec: Json) -> Json:
        if sees_secrets(self.context["request"]):
            return spec
        return {name: redact(value) if FIELDS[name].redacted else value for name, value in spec.items()}


class VersionView(ResourceView):
    tag = "jobs"
    queryset = JobVersion.objects.all()
    serializer_class = VersionSerializer

    @cached_property
    def job(self) -> Job:
        return find_job(self.request, self.kwargs["job_id"])

    def get_queryset(self) -> QuerySet[JobVersion]:
        return self.job.versions.all()

    def note_earlier(self, versions: Iterable[JobVersion]) -> None:
        """Read the versions before these by one statement."""
        numbers = [version.version - 1 for version in versions]
        self.earlier = {found.version: found for found in self.get_queryset().filter(version__in=numbers)}


@extend_schema_view(
    get=operation(
        "list_versions", "Versions of a job, the latest first, and what each changed", errors=(400, 404)
    )
)
class Versions(VersionView, ListView):
    newest_first = ("version",)

    def paginate_queryset(self, queryset: Any) -> Any:
        page = super().paginate_queryset(queryset) or []
        self.note_earlier(page)
        return page


@extend_schema_view(get=operation("read_version", "One version, and what it changed", errors=(404,)))
class OneVersion(VersionView, RetrieveAPIView[JobVersion]):
    path_schemas = {"number": number(minimum=1, maximum=MAX_VERSION)}

    def get_object(self) -> JobVersion:
        given: str = self.kwargs["number"]
        is_number = given.isascii() and given.isdigit() and len(given) <= len(str(MAX_VERSION))
        named = self.get_queryset().filter(version=int(given) if is_number else 0)
        found = first_or_missing(named, f"the job has no version {given[:60]}")
        self.note_earlier([found])
        return found


def spec_of(version: JobVersion) -> Json:
    """Read the fields of a version; one from before those of the job's row were kept lacks them."""
    versioned = (field for field in FIELDS.values() if field.versioned)
    spec = {field.name: field.as_json(getattr(version, field.column)) for field in versioned}
    return {**(version.job_fields or {}), **spec}


def changed_paths(before: Any, after: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield where two values differ, as deep as both are objects."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            yield from changed_paths(before.get(name), after.get(name), (*path, name))
    elif before != after:
        yield path


def part(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        # What is redacted is no object any more.
        value = value.get(name) if isinstance(value, dict) else value
    return value
