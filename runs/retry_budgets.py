"""How many retries of a tenant go, however many have fallen due: a storm of one tenant is not everybody's.

A retry whose delay is over waits as `blocked` until there is a token for it. A tenant's bucket fills by its budget a
minute and holds BURST_SECONDS' worth of it, so no minute has more than the budget and that. The bucket is a row that
is locked by whoever takes from it: however many processes promote, one decides at a time.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from runs.queries import Connection, change, rows

BURST_SECONDS = 5


class Budget(NamedTuple):
    tenant_id: int
    per_minute: int
    tokens: float
    tokens_at: datetime

    def at(self, now: datetime) -> float:
        """A clock that went back gives nothing, and takes nothing."""
        seconds = max(0.0, (now - self.tokens_at).total_seconds())
        return min(most_at_once(self.per_minute), self.tokens + seconds * self.per_minute / 60)

    def is_from_the_future(self, now: datetime) -> bool:
        """The clock went back by more than lies between the looks of two deciders: the bucket fills from now on."""
        return self.tokens_at - now > timedelta(seconds=BURST_SECONDS)


def most_at_once(per_minute: int) -> float:
    return max(1.0, per_minute * BURST_SECONDS / 60)


def let_retries_go(connection: Connection, now: datetime, most: int) -> int:
    """As many of each tenant as its budget has tokens for; of one that has no budget any more, all in turn."""
    waiting = [tenant for (tenant,) in rows(connection, "tenants_at_their_budget")]
    if not waiting:
        return 0
    with connection.transaction():
        change(connection, "make_budgets", {"tenants": waiting, "burst": BURST_SECONDS, "now": now})
        budgets = [Budget(*row) for row in rows(connection, "lock_budgets", {"tenants": waiting})]
        tokens = {budget.tenant_id: budget.at(now) for budget in budgets}
        allowed = {tenant: min(most, int(left)) for tenant, left in tokens.items() if left >= 1}
        free = [tenant for (tenant,) in rows(connection, "unbudgeted", {"tenants": waiting})]
        went = _release(connection, {**allowed, **dict.fromkeys(free, most)})
        begun_anew = {budget.tenant_id for budget in budgets if budget.is_from_the_future(now)}
        changed = allowed.keys() | begun_anew
        _write(connection, {tenant: tokens[tenant] - went.get(tenant, 0) for tenant in changed}, now)
    return sum(went.values())


def _release(connection: Connection, counts: dict[int, int]) -> dict[int, int]:
    if not counts:
        return {}
    values = {"tenants": list(counts), "counts": list(counts.values())}
    return dict(rows(connection, "release_retries", values))


def _write(connection: Connection, tokens: dict[int, float], now: datetime) -> None:
    """Of those who took some or begin anew: the others' buckets fill by the time alone."""
    if tokens:
        values = {"tenants": list(tokens), "tokens": list(tokens.values()), "now": now}
        change(connection, "spend_budgets", values)
