"""`beatkeeper plan|apply|drift --app payments.celery`: compare declared jobs with those the platform has.

The exit status is 0, 1 when jobs have drifted (drift) or were refused (apply), and 2 when nothing could be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .declarations.plan import ChangeKind, PlannedChange, plan, summary
from .errors import BeatkeeperError
from .registry import keeper_of

if TYPE_CHECKING:
    from .app import Beatkeeper

DONE, DIFFERENT, FAILED = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    try:
        keeper = find_keeper(given.app)
        return int(given.act(keeper, given))
    except (BeatkeeperError, LookupError, ImportError, AttributeError, ValueError, OSError) as error:
        print(f"beatkeeper: {error}", file=sys.stderr)
        return FAILED


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="beatkeeper", description=(__doc__ or "").partition("\n")[0])
    acts = top.add_subparsers(required=True, metavar="plan|apply|drift")
    for name, act, words in (
        ("plan", show_plan, "show what applying would change"),
        ("apply", apply, "make the platform's jobs what the code declares"),
        ("drift", show_drift, "show what somebody changed by hand; ends with 1 when there is any"),
    ):
        one = acts.add_parser(name, help=words, description=words)
        one.add_argument("--app", "-A", required=True, help="the Celery app, as in `celery -A`")
        one.add_argument("--json", action="store_true", help="for programs")
        one.set_defaults(act=act)
        if name == "apply":
            one.add_argument(
                "--prune", action="store_true", help="cancel the jobs that are no longer declared"
            )
    return top


def find_keeper(name: str) -> Beatkeeper:
    """Find the app as `celery -A` does, with its task modules loaded, so that all their jobs are declared."""
    from celery.app.utils import find_app

    sys.path.insert(0, os.getcwd())
    app = find_app(name)
    app.loader.import_default_modules()
    app.finalize()
    return keeper_of(app)


def planned(keeper: Beatkeeper) -> list[PlannedChange]:
    return plan(keeper.declarations(), keeper.link().declared(), pool=keeper.pool, source=keeper.source)


def show_plan(keeper: Beatkeeper, given: argparse.Namespace) -> int:
    changes = planned(keeper)
    print_changes(changes, summary(changes), given.json)
    return DONE


def show_drift(keeper: Beatkeeper, given: argparse.Namespace) -> int:
    drifted = [change for change in planned(keeper) if change.drift]
    found = f"{len(drifted)} drifted" if drifted else "Every declared job is as it was applied."
    print_changes(drifted, found, given.json)
    return DIFFERENT if drifted else DONE


def apply(keeper: Beatkeeper, given: argparse.Namespace) -> int:
    changes, link = planned(keeper), keeper.link()
    if not given.json:
        print_changes(changes, summary(changes), as_json=False)
    gone = [change.name for change in changes if change.kind == ChangeKind.REMOVED] if given.prune else []
    again = [change.name for change in changes if change.drift]
    to_apply = {change.name for change in changes if change.to_apply}
    specs = [spec for spec in keeper.declarations() if spec["name"] in to_apply]
    now = link.declare(specs, again=again, withdraw=gone) if specs or gone else link.declared()
    refused = {one.name: one.error for one in now if one.name in to_apply and one.error}
    waiting = sorted(one.name for one in now if one.name in {*to_apply, *gone} and one.waiting)
    if given.json:
        shown = [change.as_json() for change in changes]
        print(json.dumps({"changes": shown, "refused": refused, "waiting": waiting}, indent=2))
    else:
        for name, reason in refused.items():
            print(f"refused: {name}: {reason}", file=sys.stderr)
        if waiting:
            print(f"waits for a scheduler: {', '.join(waiting)}", file=sys.stderr)
        count = len(to_apply) + len(gone)
        print(f"Applied: {count - len(refused) - len(waiting)} of {count}.")
    return DIFFERENT if refused or waiting else DONE


def print_changes(changes: Sequence[PlannedChange], last_line: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps([change.as_json() for change in changes], indent=2))
        return
    for change in changes:
        print("\n".join(change.lines()))
    print(last_line)


if __name__ == "__main__":
    sys.exit(main())
