"""Import periodic tasks of django-celery-beat as jobs, and give them back."""

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from auditlog.context import acting_as
from auditlog.models import ActorKind
from jobs.models import Tenant
from jobs.spec.schedule import describe_schedule
from runs.celery_beat import importer
from runs.celery_beat.comparison import UNEXPLAINED, Comparison, shadow
from runs.celery_beat.source import NotServable
from runs.celery_beat.translation import ImportOptions

MAX_SHOWN = 10


class Command(BaseCommand):
    help = (
        "Turns the rows of django-celery-beat into jobs of a tenant. Without --apply it only says what would become of "
        "each. The rows are those of BEATKEEPER_CELERY_BEAT_URL, else those in the platform's own database."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--tenant", required=True, help="whose jobs they become, by its slug")
        parser.add_argument("--pool", default="default", help="whose workers run them (default: default)")
        parser.add_argument("--timeout", default="P1D", help="of each run (default: P1D, a day)")
        parser.add_argument(
            "--max-attempts",
            type=int,
            default=1,
            help="of each run; tasks that call self.retry() need more (default: 1, as under celery beat)",
        )
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--apply", action="store_true", help="create and update the jobs")
        what.add_argument("--shadow", action="store_true", help="compare the times of rows and jobs")
        what.add_argument("--undo", action="store_true", help="pause the jobs, switch their rows on again")
        parser.add_argument("--dry-run", action="store_true", help="only say what would happen (the default)")
        parser.add_argument(
            "--disable-imported",
            action="store_true",
            help="switch the rows off: from that moment on their jobs are at work, which are paused before",
        )
        parser.add_argument(
            "--source",
            help="as which the database was known when its rows were imported, where it has another name now; --undo "
            "says which there are",
        )
        parser.add_argument("--hours", type=float, default=24.0, help="of --shadow (default: 24)")

    def handle(self, *args: Any, **options: Any) -> None:
        tenant = Tenant.objects.filter(slug=options["tenant"]).first()
        if tenant is None:
            known = ", ".join(Tenant.objects.values_list("slug", flat=True)[:20])
            raise CommandError(f"there is no tenant {options['tenant']}; there are {known or 'none yet'}")
        if options["apply"] and options["dry_run"]:
            raise CommandError("--apply and --dry-run exclude each other")
        wanted = ImportOptions(options["pool"], options["timeout"], options["max_attempts"])
        try:
            acting = acting_as(ActorKind.SYSTEM, "import_celery_beat")
            with acting, importer.rows_at(settings.CELERY_BEAT_URL) as rows:
                rows.source = self._source(tenant, rows.source, options)
                if options["shadow"]:
                    self._compare(shadow(rows, wanted, timedelta(hours=options["hours"])))
                elif options["undo"]:
                    self._report(importer.undo(tenant, rows, options["dry_run"]))
                else:
                    dry_run, off = not options["apply"], options["disable_imported"]
                    results = importer.Import(tenant, wanted, rows, dry_run, off).run()
                    self._report(results, hint_if_dry=dry_run)
                    if missing := importer.missing_exports(tenant, rows, wanted):
                        words = self.style.WARNING("The pool does not export, and so cannot run: ")
                        self.stdout.write(words + ", ".join(missing))
        except NotServable as why:
            raise CommandError(str(why)) from why

    def _source(self, tenant: Tenant, found: str, options: dict[str, Any]) -> str:
        """Find the imported rows' database by host, port and name, or by `--source` when these have changed."""
        named: str | None = options["source"]
        if named is not None and named not in (known := importer.sources_of(tenant)):
            there = ", ".join(known) or "nowhere yet"
            raise CommandError(f"nothing was imported from {named}; rows of this tenant were from {there}")
        open_ones = importer.sources_of(tenant, undone_at=None)
        if named is None and options["undo"] and open_ones and found not in open_ones:
            raise CommandError(
                f"there is nothing to give back to {found}, but to {', '.join(open_ones)}: if that is the same "
                f"database by another name, say --source {open_ones[0]}"
            )
        return named or found

    def _report(self, results: Iterable[importer.Done], hint_if_dry: bool = False) -> None:
        counted = Counter[str]()
        for done in results:
            counted[done.what] += 1
            style = self.style.WARNING if done.what == importer.REFUSED else self.style.SUCCESS
            plan = done.spec and describe_schedule(done.spec["schedule"], done.name)
            words = f": {done.spec['target']['task']}. {plan}" if done.spec else ""
            self.stdout.write(f"{style(done.what)}  {done.name}{words}")
            for note in done.notes:
                self.stdout.write(f"    {note}")
        summed = ", ".join(f"{count} {what}" for what, count in sorted(counted.items()))
        self.stdout.write(summed or "there are no rows")
        if hint_if_dry and (counted[importer.CREATED] or counted[importer.UPDATED]):
            self.stdout.write("Nothing was changed; --apply does it.")

    def _compare(self, comparisons: Iterable[Comparison]) -> None:
        unexplained = 0
        for found in comparisons:
            if found.refused:
                self.stdout.write(f"{self.style.WARNING(importer.REFUSED)}  {found.name}: {found.refused}")
                continue
            how_many = f"{found.compared} times are the same"
            if found.differences:
                how_many += f", {len(found.differences)} are not"
            self.stdout.write(f"{found.name}: {how_many}")
            unexplained += sum(different.rule == UNEXPLAINED for different in found.differences)
            for different in found.differences[:MAX_SHOWN]:
                by = "celery beat" if different.by_celery else "the job"
                self.stdout.write(f"    {different.at.isoformat()} only by {by}: {different.rule}")
        if unexplained:
            raise CommandError(f"{unexplained} differences have no explanation: please look at these rows")
