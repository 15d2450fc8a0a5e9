"""Recognize a database whose tables were made by a version from before 0.1.0, which cannot be upgraded.

No Django here: `manage.py standalone` looks before any settings can be loaded.
"""

from collections.abc import Iterable
from pathlib import Path

APPLIED = "SELECT app, name FROM django_migrations"
ROOT = Path(__file__).resolve().parents[1]
# The folder of each app with migrations, by its label.
FOLDERS = {f"beatkeeper_{path.parent.name}": path.parent.name for path in sorted(ROOT.glob("*/migrations"))}


def foreign_migrations(applied: Iterable[tuple[str, str]]) -> list[str]:
    """Return the applied migrations of our apps that neither this code nor a newer version has.

    A newer version continues the numbers of this code's migrations without a gap.
    """
    seen, found = set(applied), []
    for label, folder in FOLDERS.items():
        known = {path.stem for path in (ROOT / folder / "migrations").glob("[0-9]*.py")}
        unknown = sorted(name for app, name in seen if app == label and name not in known)
        numbers = {int(name[:4]) for name in unknown}
        newest = max((int(name[:4]) for name in known), default=0)
        if numbers != set(range(newest + 1, max(numbers, default=newest) + 1)):
            found += [f"{label}.{name}" for name in unknown]
    return found


def describe(foreign: list[str]) -> str:
    more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
    return f"its tables were made by a version from before 0.1.0 (migration {foreign[0]}{more}), which has no upgrade"
