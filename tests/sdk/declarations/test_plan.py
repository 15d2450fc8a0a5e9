"""What a code base declares beside what the platform has, as pure comparison."""

from typing import Any

from scheduler_project.sdk.declarations.plan import (
    ChangeKind,
    DeclaredJob,
    FieldDifference,
    PlannedChange,
    compare,
    plan,
    summary,
)


def known(name: str, spec: dict[str, Any], **more: Any) -> DeclaredJob:
    return DeclaredJob(**{"name": name, "pool": "payments", "source": "shop", "spec": spec, **more})


def planned(wanted: list[dict[str, Any]], *there: DeclaredJob, pool: str = "payments") -> list[PlannedChange]:
    return plan(wanted, there, pool=pool, source="shop")


def test_each_kind_of_change() -> None:
    changes = planned(
        [{"name": "a"}, {"name": "b", "priority": 7}, {"name": "c"}],
        known("b", {"priority": 5}),
        known("c", {}),
        known("d", {}),
        known("e", {}, withdrawn=True),
        known("f", {}, source="other"),
    )
    assert [(change.name, change.kind) for change in changes] == [
        ("a", ChangeKind.ADDED),
        ("b", ChangeKind.CHANGED),
        ("c", ChangeKind.UNCHANGED),
        ("d", ChangeKind.REMOVED),
    ]
    assert changes[1].differences == [FieldDifference("priority", 5, 7)]
    assert summary(changes) == "1 to add, 1 to change, 1 no longer declared, 0 drifted, 1 unchanged."


def test_what_was_withdrawn_is_added_again() -> None:
    assert [change.kind for change in planned([{"name": "a"}], known("a", {}, withdrawn=True))] == [
        ChangeKind.ADDED
    ]


def test_another_pool_is_a_change_and_none_is_the_keys_own() -> None:
    [change] = planned([{"name": "a"}], known("a", {}), pool="other")
    assert change.differences == [FieldDifference("pool", "payments", "other")]
    assert planned([{"name": "a"}], known("a", {}), pool="")[0].kind == ChangeKind.UNCHANGED


def test_nested_fields_are_named_one_by_one() -> None:
    before, after = (
        {"retry": {"max_attempts": 4, "base": 1}, "tags": {"a": 1}},
        {"retry": {"max_attempts": 6, "base": 1}},
    )
    assert compare(before, after) == [
        FieldDifference("retry.max_attempts", 4, 6),
        FieldDifference("tags", {"a": 1}, None),
    ]


def test_drift_is_what_differs_from_what_was_applied() -> None:
    applied = {"priority": 5, "retry": {"max_attempts": 4}, "tags": {}, "version": 1}
    present = {
        "priority": 9,
        "retry": {"max_attempts": 4, "jitter": "full"},
        "tags": {"x": "y"},
        "version": 2,
        "new": 1,
    }
    [change] = planned(
        [{"name": "a"}], known("a", {}, applied=applied, present=present, status="active", edited_by="olga")
    )
    assert change.drift == [FieldDifference("priority", 5, 9), FieldDifference("tags.x", None, "y")]
    assert change.lines() == [
        "  a",
        "    edited by hand by olga: priority: 5 -> 9",
        '    edited by hand by olga: tags.x: (default) -> "y"',
    ]


def test_what_waits_to_be_applied_has_not_drifted() -> None:
    [change] = planned(
        [{"name": "a"}], known("a", {}, applied={"a": 1}, present={"a": 2}, status="active", waiting=True)
    )
    assert change.drift == [] and not change.to_apply


def test_a_refused_one_is_applied_again() -> None:
    [change] = planned([{"name": "a"}], known("a", {}, error="no such pool"))
    assert change.to_apply and change.lines()[1] == "    was refused: no such pool"


def test_fields_of_a_later_platform_are_left_out() -> None:
    row = {"name": "a", "pool": "p", "source": "s", "spec": {}, "colour": "blue"}
    assert DeclaredJob.read(row).name == "a"
