"""A kind of target is one object: what it says of itself is all that the platform knows of it."""

import json
import subprocess
import sys
from typing import Any

import pytest
from django.utils.module_loading import import_string

from jobs.api.jobs import COMPONENTS
from jobs.errors import InvalidInput
from jobs.spec.targets import KINDS, read_target
from jobs.spec.targets.kind import TargetKind
from jobs.validation.checks import Json, refuse_unknown
from jobs.validation.schema import text
from tests.support.api_client import Caller
from tests.support.factories import job_spec, make_pool, make_tenant, make_worker


class ContainerKind(TargetKind):
    name = "container"
    properties = {"image": text(), "env": {"type": "object"}}
    required = ("image",)
    example = '{"kind": "container", "image": "settle:1"}'

    def read(self, given: Json) -> Json:
        refuse_unknown(given, ("kind", *self.properties), "target")
        return {"image": given["image"]}

    def recipient(self, target: Json) -> object:
        return target.get("image")


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> TargetKind:
    kind = ContainerKind()
    monkeypatch.setitem(KINDS, kind.name, kind)
    return kind


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_kind_is_whole(kind: TargetKind) -> None:
    example = json.loads(kind.example.replace("https://…", "https://team.example/"))
    assert kind.read(example) and read_target(example)["kind"] == kind.name
    assert set(example) <= {"kind", *kind.properties} and {"kind", *kind.required} <= set(example)
    assert COMPONENTS["Target"]["discriminator"]["mapping"][kind.name].endswith(f"/{kind.component}")
    assert COMPONENTS[kind.component] == kind.schema
    assert COMPONENTS[kind.input_component] == kind.input_schema and kind.input_properties
    assert kind.recipient(example)
    if kind.executor:
        assert callable(import_string(kind.executor))


def test_the_platforms_own_workers_execute_every_kind() -> None:
    from scheduler_project.celery import keeper

    assert all(keeper.targets.executor(name) for name in KINDS)


def test_workers_read_kinds_before_the_apps_of_django_are_loaded() -> None:
    subprocess.run([sys.executable, "-c", "import jobs.spec.targets"], check=True, env={"PYTHONPATH": "."})


@pytest.mark.django_db
def test_another_kind_is_known_everywhere_by_its_object_alone(container: TargetKind) -> None:
    caller, pool = Caller(make_tenant()), make_pool(slug="default", exported_kinds=[])
    spec = job_spec(target={"kind": "container", "image": "settle:1"})
    assert caller.post("jobs", spec).json()["field"] == "target.kind"
    pool.exported_kinds = ["container"]
    pool.save()
    assert caller.post("jobs", {**spec, "name": "second"}).json()["warnings"]
    make_worker(pool=pool, known_targets=["kind:container"])
    answer = caller.post("jobs", {**spec, "name": "third"}).json()
    assert (answer["target"], answer["warnings"]) == ({"kind": "container", "image": "settle:1"}, [])


def test_an_unknown_kind_is_refused_like_any_other_word() -> None:
    for name in ("container", "shell", ["http"], None):
        with pytest.raises(InvalidInput) as refused:
            read_target({"kind": name})
        [error] = refused.value.errors
        assert error.field == "target.kind" and error.hint == "one of celery, http, command"


@pytest.mark.parametrize(
    ("kind", "target", "same"),
    [
        ("http", {"url": "https://a.example/x"}, {"url": "https://a.example/y"}),
        ("celery", {"task": "a"}, {"task": "a", "args": [1]}),
        ("command", {"argv": ["a"]}, {"argv": ["a"], "env": {"A": "1"}}),
    ],
)
def test_the_recipient_of_secrets_is_the_place_and_nothing_else(kind: str, target: Any, same: Any) -> None:
    recipient = KINDS[kind].recipient
    assert recipient(target) == recipient(same) != recipient({})
