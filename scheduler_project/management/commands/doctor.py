"""Print what the doctor's checks find."""

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from jobs.validation.checks import visible
from scheduler_project.doctor import CheckResult, Level, examine, is_healthy

COLOURS = {Level.FINE: "SUCCESS", Level.NOTE: "WARNING", Level.PROBLEM: "ERROR"}


class Command(BaseCommand):
    help = "Report what is wrong with the installation and what to do; exit code 1 if anything is."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON document for machines")

    def handle(self, *args: Any, **options: Any) -> None:
        lines = list(self._as_json() if options["json"] else self._as_text())
        if not is_healthy(lines):
            sys.exit(1)

    def _as_json(self) -> list[CheckResult]:
        lines = list(examine())
        findings = [{"check": line.check, **line.finding._asdict()} for line in lines]
        self.stdout.write(json.dumps({"healthy": is_healthy(lines), "findings": findings}, indent=2))
        return lines

    def _as_text(self) -> list[CheckResult]:
        lines = []
        for line in examine():
            lines.append(line)
            style = getattr(self.style, COLOURS[line.finding.level])
            self.stdout.write(
                f"{style(f'{line.finding.level.value:<8}')} {line.check:<16} {visible(line.finding.what)}"
            )
            if line.finding.do:
                self.stdout.write(f"{'':<25} do: {visible(line.finding.do)}")
        count = sum(1 for line in lines if line.finding.level == Level.PROBLEM)
        self.stdout.write(f"\n{count} problem{'' if count == 1 else 's'}" if count else "\nall is well")
        return lines
