"""Read the packages of the product, which `root_packages` in pyproject.toml lists."""

from typing import Any

import tomllib

from tests.support.processes import CHECKOUT

PYPROJECT: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
PACKAGES: tuple[str, ...] = tuple(PYPROJECT["tool"]["importlinter"]["root_packages"])
