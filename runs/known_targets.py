"""What the workers of a pool know, for those who write jobs down (jobs/known_targets.py)."""

from django.db.models import Func, Q, QuerySet

from jobs.known_targets import KnownTargets
from jobs.models import Pool, Tenant
from runs.models import WorkerNode

# However many workers a pool has had: the latest of them know what the pool's code is.
LATEST = 20


def known_targets(pool: Pool, tenant: Tenant | None = None) -> KnownTargets:
    nodes = WorkerNode.objects.filter(pool=pool)
    if tenant is not None:
        # A worker with a tenant's key takes runs of that tenant alone.
        nodes = nodes.filter(Q(tenant=None) | Q(tenant=tenant))
    living = nodes.living()
    if living.exists():
        return KnownTargets(True, _names(living))
    latest = nodes.order_by("-last_beat_at")[:LATEST]
    return KnownTargets(False, _names(WorkerNode.objects.filter(pk__in=[node.pk for node in latest])))


def _names(nodes: QuerySet[WorkerNode]) -> frozenset[str]:
    return frozenset(nodes.values_list(Func("known_targets", function="unnest"), flat=True).distinct())
