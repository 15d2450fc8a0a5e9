"""Count stored secrets by their encryption key, and encrypt all with the first key."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from auditlog.context import acting_as
from auditlog.models import ActorKind
from jobs.errors import DomainError
from jobs.secrets import service as tenant_secrets


class Command(BaseCommand):
    help = (
        "Encrypts all secrets with the first of ENCRYPTION_KEYS (`rotate`), or counts them by key (`keys`)."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("what", choices=("rotate", "keys"))
        parser.add_argument("--batch", type=int, default=200, help="secrets of one transaction (200)")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["what"] == "rotate":
                with acting_as(ActorKind.SYSTEM, "manage.py secrets"):
                    rotated = tenant_secrets.rotate(max(1, options["batch"]))
                self.stdout.write(f"{rotated.renewed} encrypted anew")
                if rotated.unreadable:
                    raise CommandError("\n".join(["These stay as they are:", *rotated.unreadable]))
            self._tell_keys()
        except DomainError as refused:
            raise CommandError(f"{refused.detail} {refused.hint}") from None

    def _tell_keys(self) -> None:
        known = tenant_secrets.box().key_ids
        places = {identity: f"key {number} of ENCRYPTION_KEYS" for number, identity in enumerate(known, 1)}
        for identity, count in tenant_secrets.counts_by_key():
            where = places.pop(identity, "NOT in ENCRYPTION_KEYS: nobody can read them")
            self.stdout.write(f"{identity}  {count:>8} secrets  {where}")
        for identity, where in places.items():
            unneeded = "" if identity == known[0] else "; it can be taken away"
            self.stdout.write(f"{identity}  {0:>8} secrets  {where}{unneeded}")
