"""A caller of the API with a tenant's key."""

import json
from typing import Any

from django.test import Client

from jobs.models import Pool, Role, Tenant
from tests.support.factories import make_key

PROBLEM = "application/problem+json"


class Caller:
    def __init__(self, tenant: Tenant, role: Role = Role.ADMIN, pool: Pool | None = None) -> None:
        self.tenant = tenant
        self.key, self.text = make_key(tenant, role, pool=pool)
        self.client = Client(headers={"Authorization": f"Bearer {self.text}"}, raise_request_exception=False)

    def get(self, path: str, **query: Any) -> Any:
        return self.client.get(address(path), query)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self._send("post", path, body, headers)

    def patch(self, path: str, body: Any, **headers: str) -> Any:
        return self._send("patch", path, body, headers)

    def put(self, path: str, body: Any) -> Any:
        return self._send("put", path, body, {})

    def delete(self, path: str, **headers: str) -> Any:
        return self._send("delete", path, "", headers)

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        text = body if isinstance(body, str | bytes) else json.dumps({} if body is None else body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return getattr(self.client, method)(
            address(path), text, content_type="application/json", headers=named
        )


def address(path: str) -> str:
    return path if path.startswith(("/", "http")) else f"/api/v1/{path}"


def refusal(response: Any, status: int, field: str | None = None) -> dict[str, Any]:
    """Return the problem after checking its form."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == PROBLEM
    problem: dict[str, Any] = response.json()
    assert problem["status"] == status
    assert problem["type"] and problem["title"] and problem["code"] and problem["detail"]
    if field is not None:
        assert problem["field"] == field, problem
    return problem
