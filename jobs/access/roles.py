"""Compare roles: a person's role includes the lower ones, a worker's includes nothing."""

from jobs.models import Role

RANK = {Role.VIEWER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}


def may(role: str, needed: Role) -> bool:
    return role == needed or (role in RANK and needed in RANK and RANK[Role(role)] >= RANK[needed])
