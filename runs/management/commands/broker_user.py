"""Create the broker's user of a tenant's workers, or remove it."""

import shlex
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from jobs.errors import DomainError, hinted
from jobs.models import Pool, Tenant
from runs.scheduler.broker.users import ManagementApi, Rabbitmqctl, make_user, remove_user


class Command(BaseCommand):
    help = (
        "Makes the RabbitMQ user of a tenant's workers, which may read that tenant's queues and do nothing else, and "
        "shows its password this once; again: with another password. Done through BEATKEEPER_BROKER_API_URL or "
        "rabbitmqctl; without either it says what to type."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("tenant", help="its slug")
        parser.add_argument(
            "--pool", help="for this pool alone, and on its broker; else for all of the platform's"
        )
        parser.add_argument("--remove", action="store_true", help="the user may do nothing any more")
        parser.add_argument("--rabbitmqctl", metavar="COMMAND", help="as it is called here, with its options")

    def handle(self, *args: Any, **options: Any) -> None:
        tenant = Tenant.objects.filter(slug=options["tenant"]).first()
        pool = Pool.objects.filter(slug=options["pool"]).first() if options["pool"] else None
        if tenant is None or (options["pool"] and pool is None):
            kind, name = ("tenant", options["tenant"]) if tenant is None else ("pool", options["pool"])
            raise CommandError(f"There is no {kind} {name!r}.")
        broker = self._broker(options["rabbitmqctl"])
        try:
            if options["remove"]:
                user = remove_user(tenant, pool, broker.remove if broker else None)
                done = "is removed" if broker else "is to be removed: rabbitmqctl delete_user"
                self.stdout.write(f"The user {user.name} {done}" + ("." if broker else f" {user.name}"))
                return
            user = make_user(tenant, pool, broker.make if broker else None)
        except DomainError as refusal:
            raise CommandError(hinted(refusal.detail, refusal.hint)) from None
        shown = {"user": user.name, "password": user.password, "vhost": user.vhost, "may read": user.read}
        for name, value in shown.items():
            self.stdout.write(f"{name:10}{value}")
        if broker is None:
            self.stdout.write("\nNothing is changed on the broker yet. There, with the password above:")
            for line in user.by_hand():
                self.stdout.write(f"  {line}")

    def _broker(self, command: str | None) -> ManagementApi | Rabbitmqctl | None:
        if command:
            return Rabbitmqctl(shlex.split(command))
        url = settings.BROKER_API_URL
        return ManagementApi(url) if url else None
