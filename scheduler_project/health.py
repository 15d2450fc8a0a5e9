"""Whether this process answers and reaches its database; for load balancers and container checks, without a key."""

import logging

from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

logger = logging.getLogger(__name__)


@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        # What is wrong goes to the log alone: anybody may ask here.
        logger.exception("the database is not available")
        return JsonResponse({"status": "unavailable", "database": "not available"}, status=503)
    return JsonResponse({"status": "ok", "database": "ok"})
