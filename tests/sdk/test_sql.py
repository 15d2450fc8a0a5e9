"""Named statements and their fragments: filled in with arguments, and refused when a name is wrong."""

from pathlib import Path

import pytest

from scheduler_project.sdk.sql import statements

FRAGMENTS = """
-- fragment: fresh(worker, now)
-- A comment of a fragment stays where it is.
{{worker}}.beat > {{now}} - {{worker}}.lease

-- fragment: living(worker, now)
{{worker}}.state = 'active' AND {{fresh({{worker}}, {{now}})}}
"""


def read(folder: Path, *texts: str) -> dict[str, str]:
    paths = []
    for number, text in enumerate(texts):
        paths.append(folder / f"{number}.sql")
        paths[-1].write_text(text)
    return statements(*paths)


def test_a_fragment_takes_its_arguments_along(tmp_path: Path) -> None:
    statement = "-- name: claim\n-- Why.\nSELECT FROM w WHERE {{living(w, coalesce(%(now)s, now()))}};\n"
    found = read(tmp_path, statement, FRAGMENTS)
    now = "coalesce(%(now)s, now())"
    assert found == {"claim": f"-- Why.\nSELECT FROM w WHERE w.state = 'active' AND w.beat > {now} - w.lease"}


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("-- name: claim\nSELECT {{dead(w)}}", "no fragment dead"),
        ("-- name: claim\nSELECT {{living(w)}}", "living takes worker, now; given: w"),
        ("-- name: claim\nSELECT 1;\n-- name: claim\nSELECT 2", "defines claim again"),
        ("-- fragment: living(a)\n{{a}}", "defines living again"),
    ],
)
def test_a_wrong_name_is_refused(tmp_path: Path, statement: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read(tmp_path, FRAGMENTS, statement)
