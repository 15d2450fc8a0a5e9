"""Follow a page of the documentation as a reader does: execute its commands and compare what it shows.

A block ```sh is executed. If the block after it is ```json, ```http or ```text, it shows what the commands print.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.answers import differences, problem_status
from tests.support.processes import CHECKOUT

BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
CURL = re.compile(r"\bcurl ")
EXECUTED = "sh"
ANSWERS = ("json", "http", "text")
# A reader looks again as well until a run has ended.
PATIENCE_SECONDS = 20.0
STEP_SECONDS = 60.0
# Whatever else curl prints, each call says what it was and how it ended.
CURLRC = 'write-out = "%{stderr}curl: %{method} %{http_code}\\n"\n'
CALL = re.compile(r"^curl: (\w+) (\d+)$", re.MULTILINE)
# Variables last from step to step, as in a terminal.
ONE_STEP = "set -eu; . ./.variables; set -a; . ./.step; set +a; export -p > .variables"


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(CHECKOUT)}:{self.line}"


@dataclass(frozen=True)
class Step:
    """One block of commands, and the block that shows what they print."""

    commands: Block
    answer: Block | None


@dataclass(frozen=True)
class Done:
    """What a step has printed, and the method and the status of each of its calls."""

    printed: str
    calls: list[tuple[str, int]]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[2], dedent(found[3]))
        for found in BLOCK.finditer(text)
    ]


def steps(page: Path) -> list[Step]:
    return [
        Step(block, after if after and after.language in ANSWERS else None)
        for block, after in pairwise([*blocks(page), None])
        if block and block.language == EXECUTED
    ]


def has_curl(page: Path) -> bool:
    return any(CURL.search(block.text) for block in blocks(page))


class Reader:
    """Follows pages in a folder of their own, with no variables set but these."""

    patience = PATIENCE_SECONDS

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / ".curlrc").write_text(CURLRC)
        (folder / ".variables").touch()
        self.env = {"PATH": os.environ["PATH"], "HOME": str(folder), **variables}

    def follow(self, page: Sequence[Step]) -> None:
        for step in page:
            self.take(step)

    def take(self, step: Step) -> None:
        """Execute a step, again and again if it only reads, until it prints what the page shows."""
        end = time.monotonic() + self.patience
        while wrong := list(mistakes(step, done := self.execute(step.commands))):
            if time.monotonic() > end or any(method != "GET" for method, _ in done.calls):
                told = "\n".join([str(step.commands), *wrong, "It printed:", done.printed])
                pytest.fail(told, pytrace=False)

    def execute(self, commands: Block) -> Done:
        (self.folder / ".step").write_text(commands.text)
        done = subprocess.run(
            ["bash", "-c", ONE_STEP],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STEP_SECONDS,
        )
        if done.returncode:
            pytest.fail(f"{commands}: {done.stderr}\nIt printed:\n{done.stdout}", pytrace=False)
        calls = [(method, int(status)) for method, status in CALL.findall(done.stderr)]
        return Done(done.stdout, calls)


def mistakes(step: Step, done: Done) -> Iterator[str]:
    """Say what a page promises and its step did not do."""
    wanted = len(CURL.findall(step.commands.text))
    if len(done.calls) < wanted:
        yield f"{wanted - len(done.calls)} of {wanted} curls were not executed"
    shown = step.answer
    expected = problem_status(shown.language, shown.text) if shown else None
    for method, status in done.calls:
        if not 200 <= status < 400 and status != expected:
            yield f"{method} was answered with {status}"
    if expected and expected not in [status for _, status in done.calls]:
        yield f"nothing was answered with {expected}"
    if shown:
        yield from differences(shown.language, shown.text, done.printed)
