"""Secrets in OpenAPI. There is no way to read a value."""

from jobs.api.operations import (
    IDEMPOTENCY_KEY,
    INSTANT,
    MAYBE_INSTANT,
    PAGING,
    obj,
    operation,
    page_of,
    ref,
    text,
)
from jobs.tenant_secrets import LONGEST_VALUE, NAME_HINT
from scheduler_project.sdk.masking import SHORTEST_SECRET
from scheduler_project.sdk.references import NAME

NAME_TEXT = text(f"{NAME_HINT[0].upper()}{NAME_HINT[1:]}.", pattern=f"^{NAME.pattern}$")
VALUE = text(
    f"At most {LONGEST_VALUE} bytes.", minLength=SHORTEST_SECRET, maxLength=LONGEST_VALUE, writeOnly=True
)
COMPONENTS = {
    "NewSecret": obj(
        {"name": NAME_TEXT, "value": VALUE}, required=("name", "value"), additionalProperties=False
    ),
    "SecretValue": obj({"value": VALUE}, required=("value",), additionalProperties=False),
    "Secret": obj(
        {
            "name": NAME_TEXT,
            "created_at": INSTANT,
            "created_by": text(),
            "updated_at": {**INSTANT, "description": "When it got its present value."},
            "updated_by": text(),
            "last_used_at": {**MAYBE_INSTANT, "description": "By a run; written once an hour at most."},
            "links": obj({"self": text(), "jobs": text("Those that refer to it.")}),
        }
    ),
}

list_secrets = operation(
    "list_secrets",
    "Secrets, newest first: their names",
    tag="secrets",
    gives=page_of("Secret"),
    errors=(400,),
    parameters=PAGING,
)
create_secret = operation(
    "create_secret",
    "Create a secret",
    tag="secrets",
    takes=ref("NewSecret"),
    gives=ref("Secret"),
    status=201,
    errors=(400, 409, 422),
    parameters=(IDEMPOTENCY_KEY,),
    about="Targets and inputs refer to it as `${secret:NAME}`. Its value is never answered, and masked in whatever a "
    "run prints.",
)
read_secret = operation(
    "read_secret", "One secret, without its value", tag="secrets", gives=ref("Secret"), errors=(404,)
)
put_secret = operation(
    "put_secret",
    "Create a secret, or give it a new value",
    tag="secrets",
    takes=ref("SecretValue"),
    gives=ref("Secret"),
    errors=(400, 409),
    about="Doing it twice is doing it once. 201 when it is new.",
)
change_secret = operation(
    "change_secret",
    "Give a secret a new value",
    tag="secrets",
    takes=ref("SecretValue"),
    gives=ref("Secret"),
    errors=(400, 404, 409),
    about="Runs that are claimed from now on get it; what runs already keeps the old one.",
)
delete_secret = operation(
    "delete_secret",
    "Delete a secret",
    tag="secrets",
    status=204,
    errors=(404, 409),
    about="Only while no job refers to it.",
)
