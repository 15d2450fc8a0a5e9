"""Store how much of each limit of requests the server processes have taken."""

from django.db import models


class Allowance(models.Model):
    """How many requests of a limit server processes have taken in one minute, to let them through.

    The table is unlogged: counting costs no write to disk, and a crash of PostgreSQL begins the minute anew.
    """

    pk = models.CompositePrimaryKey("minute", "subject")
    minute = models.DateTimeField()
    subject = models.TextField()
    # May go beyond the limit: the requests beyond it are given to nobody.
    taken = models.BigIntegerField()

    class Meta:
        db_table = "beatkeeper_allowance"

    def __str__(self) -> str:
        return f"{self.taken} by {self.subject}"
