"""Calendars in OpenAPI."""

from jobs.api.operations import (
    IDEMPOTENCY_KEY,
    INSTANT,
    PAGING,
    number,
    obj,
    operation,
    page_of,
    ref,
    text,
)
from jobs.calendars import LONGEST_DESCRIPTION
from jobs.schedules.calendar_spec import LONGEST_NAME, MOST_DATES, MOST_SPANS, WEEK_DAYS

SPANS = {
    "type": "array",
    "maxItems": MOST_SPANS,
    "items": {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": text("HH:MM, the end up to 24:00; a span over midnight is written as two."),
    },
}
GIVEN = {
    "description": text(maxLength=LONGEST_DESCRIPTION),
    "timezone": text("Of the IANA database; days and hours are those of its clock.", default="UTC"),
    "dates": {
        "type": "array",
        "maxItems": MOST_DATES,
        "description": "Closed dates; a plain date for one without a name.",
        "items": {
            "oneOf": [
                obj({"date": text(format="date"), "name": text(maxLength=LONGEST_NAME)}, required=("date",)),
                text(format="date"),
            ]
        },
    },
    "weekly": obj(
        dict.fromkeys(WEEK_DAYS, SPANS),
        additionalProperties=False,
        description="Open hours. A day left out is closed; without any day it is always open.",
    ),
}
NAME = text("Small letters, digits and inner hyphens; it never changes.", maxLength=40)
COMPONENTS = {
    "NewCalendar": obj({"name": NAME, **GIVEN}, required=("name",), additionalProperties=False),
    "CalendarChanges": obj(
        GIVEN,
        additionalProperties=False,
        description="What shall change; nested values are replaced whole.",
    ),
    "Calendar": obj(
        {
            "name": NAME,
            **GIVEN,
            "edition": number("Raised by every edit of what is open."),
            "rearming": {
                "type": "boolean",
                "description": "Its last edit has not come to all of its jobs yet.",
            },
            "created_at": INSTANT,
            "updated_at": INSTANT,
            "links": obj({"self": text(), "jobs": text()}),
        }
    ),
}

list_calendars = operation(
    "list_calendars",
    "Calendars, newest first",
    tag="calendars",
    gives=page_of("Calendar"),
    errors=(400,),
    parameters=PAGING,
)
create_calendar = operation(
    "create_calendar",
    "Create a calendar",
    tag="calendars",
    takes=ref("NewCalendar"),
    gives=ref("Calendar"),
    status=201,
    errors=(400, 409, 422),
    parameters=(IDEMPOTENCY_KEY,),
    about="Jobs name it in their schedules: closed times are left out, or moved to another day.",
)
read_calendar = operation(
    "read_calendar", "One calendar", tag="calendars", gives=ref("Calendar"), errors=(404,)
)
edit_calendar = operation(
    "edit_calendar",
    "Change a calendar",
    tag="calendars",
    takes=ref("CalendarChanges"),
    gives=ref("Calendar"),
    errors=(400, 404),
    about="The jobs that plan by it get their next times anew, usually within a second; until then each keeps the one "
    "next time it had.",
)
delete_calendar = operation(
    "delete_calendar",
    "Delete a calendar",
    tag="calendars",
    status=204,
    errors=(404, 409),
    about="Only while no job plans by it.",
)
