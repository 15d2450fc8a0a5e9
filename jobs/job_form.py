"""A job as a form. Its fields are the API's; the service alone judges them, and its refusals land at the fields."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from unfold.widgets import (
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from auditlog.redaction import MASK, redact
from jobs.catch_up_spec import CATCH_UP_ORDERS, CATCH_UP_POLICIES, DEFAULT_CATCH_UP, DEFAULT_MAKING_UP
from jobs.durations import as_text
from jobs.input_checks import Json, unstorable
from jobs.models import DEFAULT_PRIORITY, Job, JobVersion, Overlap
from jobs.refusals import FieldError, InvalidInput
from jobs.retry_spec import DEFAULT_COOLDOWN
from jobs.schedules.on_calendar import EXCLUDE, NEXT, PREVIOUS
from jobs.service_form import ServiceForm, choice, line, number, refusal
from jobs.services import create_job, edit_job, edition
from jobs.specs import DEFAULT_TIMEOUT_MS, OVERLAP_IN_WORDS
from scheduler_project.sdk.retries import BACKOFFS, DEFAULT_RETRY, JITTERS, NAMED_CLASSES

KINDS = [
    ("cron", "Cron expression"),
    ("every", "Fixed interval"),
    ("at", "Once, at an instant"),
    ("none", "On demand only"),
]
# Which fields of the form make up which field of the spec.
PARTS = {
    "name": ("name",),
    "description": ("description",),
    "pool": ("pool",),
    "priority": ("priority",),
    "tags": ("tags",),
    "target": ("target",),
    "schedule": (
        "schedule_kind",
        "cron",
        "timezone",
        "every",
        "at",
        "start",
        "end",
        "calendar",
        "on_closed",
        "jitter",
    ),
    "timeout": ("timeout",),
    "overlap": ("overlap",),
    "max_concurrency": ("max_concurrency",),
    "retry": (
        "retry_max_attempts",
        "retry_backoff",
        "retry_base",
        "retry_cap",
        "retry_jitter",
        "retry_max_losses",
        *(f"retry_{kind}" for kind in NAMED_CLASSES),
    ),
    "breaker": ("breaker_failures", "breaker_cooldown"),
    "catch_up": (
        "catch_up_policy",
        "catch_up_window",
        "catch_up_max",
        "catch_up_per_minute",
        "catch_up_order",
    ),
}
ON_CLOSED_IN_WORDS = {
    EXCLUDE: "that time is left out",
    NEXT: "it is moved to the next open day",
    PREVIOUS: "it is moved to the previous open day",
}
TARGET_HELP = "<br>".join(
    [
        'One of <code>{"kind": "celery", "task": "payments.tasks.settle", "args": [], "kwargs": {}}</code>,',
        '<code>{"kind": "http", "url": "https://…", "method": "POST", "headers": {}, "body": {}}</code>,',
        '<code>{"kind": "command", "argv": ["…"], "env": {}}</code>.',
        "More fields (signature, redirects, callback, limits …) are in docs/targets.md.",
        f"A value shown as {MASK} is kept as it is, as long as the target goes to the same place.",
    ]
)
EMPTY_TARGET = {"kind": "http", "method": "GET", "url": "https://"}
INSTANT_HELP = "Such as 2026-11-18T12:00:00Z."
DURATION_HELP = "Seconds, or such as PT30S, PT1H, P1D."
NAMES_HELP = (
    "Such as ValueError, payments.errors.CardDeclined, HTTP 404, HTTP 5xx, exit 3; with commas between."
)


class ObjectField(forms.JSONField):
    """An object with a line for each of its names."""

    def to_python(self, value: Any) -> Any:
        try:
            found = super().to_python(value)
        except (ValueError, RecursionError):
            raise ValidationError(self.error_messages["invalid"], "invalid", {"value": value}) from None
        for error in unstorable(found):
            raise ValidationError(f"{error.field}: {error.detail}".removeprefix(": "))
        return found

    def bound_data(self, data: Any, initial: Any) -> Any:
        """What cannot be kept is shown as it was written."""
        try:
            self.to_python(data)
        except ValidationError:
            return InvalidJSONInput(data)
        return super().bound_data(data, initial)

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return super().prepare_value(value)
        names = sorted(value, key=lambda name: name != "kind")
        lines = [f"  {compact(name)}: {compact(value[name])}" for name in names]
        return "{\n" + ",\n".join(lines) + "\n}" if lines else "{}"


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class JobForm(ServiceForm):
    # Which edition of the job the form was filled from: a stale one would put back what others changed.
    seen = forms.CharField(required=False, widget=forms.HiddenInput())
    name = forms.CharField(strip=False, widget=UnfoldAdminTextInputWidget())
    description = forms.CharField(required=False, widget=UnfoldAdminTextareaWidget(attrs={"rows": 2}))
    priority = number("0 to 1000; higher goes first, and nobody starves.")
    tags = ObjectField(
        required=False,
        help_text='Such as {"team": "payments"}.',
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2, "spellcheck": "false"}),
    )
    target = ObjectField(
        help_text=TARGET_HELP,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 8, "spellcheck": "false", "class": "font-mono"}),
    )
    schedule_kind = choice(KINDS, label="Runs by")
    cron = line(
        "Five fields, or six with seconds first; names, L, #, H and @daily are understood.",
        placeholder="*/5 * * * *",
    )
    timezone = line("A name of the IANA database.", placeholder="America/New_York")
    every = line(DURATION_HELP, placeholder="PT30S")
    at = line(INSTANT_HELP, placeholder="2026-11-18T12:00:00Z")
    start = line(f"No planned time before. {INSTANT_HELP}", label="Not before")
    end = line(f"No planned time after. {INSTANT_HELP}", label="Not after")
    calendar = line("Name of one of the tenant's calendars; empty: every day is open.")
    on_closed = choice(ON_CLOSED_IN_WORDS.items(), label="When it is closed")
    jitter = line(
        f"Each run begins so much after its planned time at most; empty: on time. {DURATION_HELP}",
        label="Flexible window",
    )
    timeout = line(f"An attempt that takes longer is ended. {DURATION_HELP}")
    overlap = choice(
        [(policy.value, f"{policy.label.lower()}: {words}") for policy, words in OVERLAP_IN_WORDS.items()],
        "When a time comes while an earlier planned run is unfinished, also between its tries.",
    )
    max_concurrency = number("Runs of this job queued or running at once; empty: no limit.")
    retry_max_attempts = number(label="Attempts")
    retry_backoff = choice(BACKOFFS, label="Back-off")
    retry_base = line(DURATION_HELP, label="First delay")
    retry_cap = line(DURATION_HELP, label="Longest delay")
    retry_jitter = choice(
        JITTERS, "Full: a random delay up to that, so that what failed together does not return together."
    )
    retry_max_losses = number(
        "After so many lost workers the run is dead; they take nothing from its attempts. Empty: the platform's.",
        label="Lost workers",
    )
    retry_permanent = line(f"Never tried again. {NAMES_HELP}", label="Permanent errors")
    retry_transient = line(
        f"Tried again, whatever the worker takes them for. {NAMES_HELP}", label="Transient errors"
    )
    retry_user = line(
        f"Mistakes of whoever gave the input; never tried again. {NAMES_HELP}", label="User errors"
    )
    breaker_failures = number(
        "After so many failures in a row, over all runs, the job's runs are held. Empty: never.",
        label="Breaker",
    )
    breaker_cooldown = line(f"Then one run tries whether it works again. {DURATION_HELP}", label="Cool-down")
    catch_up_policy = choice(
        CATCH_UP_POLICIES, "What becomes of times missed in an outage.", label="Missed times"
    )
    catch_up_window = line(f"Older ones are only noted. {DURATION_HELP}", label="At most so old")
    catch_up_max = number("Runs made for one gap.", label="At most so many")
    catch_up_per_minute = number("So that what is missed does not crowd out what is due.", label="A minute")
    catch_up_order = choice(CATCH_UP_ORDERS, label="First the")

    class Meta:
        model = Job
        fields = ("tenant", "pool")

    spec: JobVersion | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        job = kwargs.get("instance")
        self.spec = job.spec if job else None
        kwargs["initial"] = {**initial(job, self.spec), **(kwargs.get("initial") or {})}
        super().__init__(*args, **kwargs)

    def field_for(self, error: FieldError) -> tuple[str | None, str]:
        return at_field(error, self.fields)

    def ask_service(self) -> Job:
        if self.spec is None:
            return create_job(self.cleaned_data["tenant"], self._data(PARTS))
        return edit_job(self.instance, self._data(self._changed()), seen=self.cleaned_data["seen"])

    def _changed(self) -> list[str]:
        return [name for name, parts in PARTS.items() if any(part in self.changed_data for part in parts)]

    def _data(self, names: Any) -> Json:
        return {name: self._value(name) for name in names}

    def _value(self, name: str) -> Any:
        given = self.cleaned_data
        if name == "schedule":
            return schedule_of(given)
        if name == "retry":
            return retry_of(given)
        if name == "breaker":
            return breaker_of(given)
        if name == "catch_up":
            return catch_up_of(given)
        if name == "target":
            return unmasked(given["target"], self.spec.target if self.spec else None)
        if name == "tags":
            return given["tags"] or {}
        if name == "timeout":
            return duration(given["timeout"])
        return given[name].slug if name == "pool" and given[name] else given[name]


def initial(job: Job | None, spec: JobVersion | None) -> Json:
    """The form's values; of a new job the defaults that the API has too."""
    retry = {**DEFAULT_RETRY, **(spec.retry if spec else {})}
    breaker = (spec.breaker if spec else None) or {"failures": None, "cooldown": DEFAULT_COOLDOWN}
    catch_up = {**DEFAULT_MAKING_UP, **(spec.catch_up if spec else DEFAULT_CATCH_UP)}
    schedule: Json = (spec.schedule or {}) if spec else {"cron": ""}
    calendar = schedule.get("calendar", {})
    kind = next((kind for kind in ("cron", "every", "at") if kind in schedule), "none")
    return {
        "seen": edition(job) if job else "",
        "name": job.name if job else "",
        "description": job.description if job else "",
        "priority": job.priority if job else DEFAULT_PRIORITY,
        "tags": job.tags if job else {},
        "target": redact(spec.target) if spec else EMPTY_TARGET,
        "schedule_kind": kind,
        "timezone": "UTC",
        **{name: value for name, value in schedule.items() if name != "every"},
        "every": shown_duration(schedule["every"]) if "every" in schedule else "",
        "calendar": calendar.get("name", ""),
        "on_closed": calendar.get("on_closed", EXCLUDE),
        "jitter": shown_duration(schedule["jitter"]) if "jitter" in schedule else "",
        "timeout": shown_duration((spec.timeout_ms if spec else DEFAULT_TIMEOUT_MS) / 1000),
        "overlap": spec.overlap if spec else Overlap.SKIP.value,
        "max_concurrency": spec.max_concurrency if spec else None,
        "retry_max_attempts": retry["max_attempts"],
        "retry_backoff": retry["backoff"],
        "retry_base": shown_duration(retry["base"]),
        "retry_cap": shown_duration(retry["cap"]),
        "retry_jitter": retry["jitter"],
        "retry_max_losses": retry.get("max_losses"),
        **{f"retry_{kind}": ", ".join(retry.get(kind, ())) for kind in NAMED_CLASSES},
        "breaker_failures": breaker["failures"],
        "breaker_cooldown": shown_duration(breaker["cooldown"]),
        "catch_up_policy": catch_up["policy"],
        "catch_up_window": shown_duration(catch_up["window"]),
        **{f"catch_up_{name}": catch_up[name] for name in DEFAULT_MAKING_UP},
    }


def schedule_of(given: Json) -> Json | None:
    """Only what belongs to the chosen kind: the others' fields are hidden, whatever was left in them."""
    kind = given["schedule_kind"]
    if kind == "none":
        return None
    kept: Json = {"jitter": duration(given["jitter"])} if given["jitter"] else {}
    if given["calendar"]:
        kept["calendar"] = {"name": given["calendar"], "on_closed": given["on_closed"]}
    if kind == "at":
        return {"at": given["at"], **kept}
    bounds = {name: given[name] for name in ("start", "end") if given[name]}
    if kind == "every":
        return {"every": duration(given["every"]), **bounds, **kept}
    return {"cron": given["cron"], "timezone": given["timezone"] or "UTC", **bounds, **kept}


def retry_of(given: Json) -> Json:
    parts: Json = {key: given[f"retry_{key}"] for key in (*DEFAULT_RETRY, "max_losses")}
    names = {kind: names_in(given[f"retry_{kind}"]) for kind in NAMED_CLASSES}
    return {**parts, **names, "base": duration(parts["base"]), "cap": duration(parts["cap"])}


def breaker_of(given: Json) -> Json | None:
    if given["breaker_failures"] is None:
        return None
    return {"failures": given["breaker_failures"], "cooldown": duration(given["breaker_cooldown"])}


def names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def catch_up_of(given: Json) -> Json:
    read = {"policy": given["catch_up_policy"], "window": duration(given["catch_up_window"])}
    if read["policy"] != "all":
        return read
    return {**read, **{name: given[f"catch_up_{name}"] for name in DEFAULT_MAKING_UP}}


def at_field(error: FieldError, fields: Any) -> tuple[str | None, str]:
    """The form's field for a path of the spec such as `retry.base`, and what to say there."""
    text = refusal(error)
    whole, _, part = error.field.partition(".")
    inner, _, innermost = part.partition(".")
    for name in (f"{whole}_{part}", part, innermost, inner, whole, PARTS.get(whole, ("",))[0]):
        if name in fields and name in PARTS.get(whole, (whole,)):
            return name, text if name != "target" or not part else f"{part}: {text}"
    return None, f"{error.field}: {text}" if error.field else text


def duration(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def shown_duration(seconds: float) -> str:
    return as_text(timedelta(seconds=seconds))


def unmasked(given: Any, stored: Any) -> Any:
    """Puts back what was masked for display, unless the secret would go to another place than before."""
    restored = _restored(given, stored)
    if restored != given and place(restored) != place(stored):
        restored = given
    if any(holds_mask(leaf, stored) for leaf in leaves(restored)):
        detail = f"{MASK} stands for a secret that is not known here"
        raise InvalidInput([FieldError("target", detail, "write the secret itself")])
    return restored


def _restored(given: Any, stored: Any) -> Any:
    if given == redact(stored):
        return stored
    if isinstance(given, dict) and isinstance(stored, dict):
        masked = redact(stored)
        return {
            name: stored[name]
            if name in stored and value == masked[name]
            else _restored(value, stored.get(name))
            for name, value in given.items()
        }
    if isinstance(given, list) and isinstance(stored, list) and len(given) == len(stored):
        masked = redact(stored)
        return [
            old if new == mask else _restored(new, old)
            for new, old, mask in zip(given, stored, masked, strict=True)
        ]
    return given


def holds_mask(leaf: Any, stored: Any) -> bool:
    """It stands in the place of a secret: the mask itself, or text that holds it."""
    if leaf == MASK or stored is None:
        return bool(leaf == MASK)
    return isinstance(leaf, str) and MASK in leaf and leaf not in leaves(stored)


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        yield value
        return
    for part in value:
        yield from leaves(part)


def place(target: Any) -> Any:
    """Who gets to see the secrets of a target."""
    if not isinstance(target, dict):
        return None
    if target.get("kind") == "http":
        return urlsplit(str(target.get("url")))[:2]
    return target.get("task") or target.get("argv")
