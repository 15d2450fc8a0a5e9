"""Pace the retries of each tenant, so that many retries of one tenant do not hold up the others.

A retry whose delay is over waits as `blocked` until there is a token for it. A tenant's bucket fills by its budget a
minute and holds BURST_SECONDS' worth of it, so no minute has more than the budget and that. The bucket is a row,
locked while retries are taken from it: however many processes promote, one decides at a time.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from runs.sql import Connection, change, rows

BURST_SECONDS = 5


class Budget(NamedTuple):
    tenant_id: int
    per_minute: int
    tokens: float
    tokens_at: datetime

    def at(self, now: datetime) -> float:
        """Return the tokens by now. A clock that went back gives nothing, and takes nothing."""
        seconds = max(0.0, (now - self.tokens_at).total_seconds())
        return min(most_at_once(self.per_minute), self.tokens + seconds * self.per_minute / 60)


def most_at_once(per_minute: int) -> float:
    return max(1.0, per_minute * BURST_SECONDS / 60)


def let_retries_go(connection: Connection, now: datetime, most: int) -> int:
    """Release as many retries of each tenant as its budget has tokens for; without a budget, all in turn."""
    waiting = [tenant for (tenant,) in rows(connection, "tenants_at_their_budget")]
    if not waiting:
        return 0
    with connection.transaction():
        change(connection, "make_budgets", {"tenants": waiting, "burst": BURST_SECONDS, "now": now})
        budgets = [Budget(*row) for row in rows(connection, "lock_budgets", {"tenants": waiting})]
        tokens = {budget.tenant_id: budget.at(now) for budget in budgets}
        allowed = {tenant: min(most, int(had)) for tenant, had in tokens.items() if had >= 1}
        free = [tenant for (tenant,) in rows(connection, "unbudgeted", {"tenants": waiting})]
        counts = {**allowed, **dict.fromkeys(free, most)}
        values = {"tenants": list(counts), "counts": list(counts.values())}
        went: dict[int, int] = dict(rows(connection, "release_retries", values)) if counts else {}
        # The clock went back by more than lies between two passes: these fill from now on.
        future = now + timedelta(seconds=BURST_SECONDS)
        begun_anew = {budget.tenant_id for budget in budgets if budget.tokens_at > future}
        # The others fill with time alone.
        left = {tenant: tokens[tenant] - went.get(tenant, 0) for tenant in allowed.keys() | begun_anew}
        if left:
            written = {"tenants": list(left), "tokens": list(left.values()), "now": now}
            change(connection, "spend_budgets", written)
    return sum(went.values())
