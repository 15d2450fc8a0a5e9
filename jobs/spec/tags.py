"""Read tags: an object of names and values in a job, `name:value` or `name` in a suspension and in filters."""

from jobs.validation.checks import Json, abbreviate, expect_object, expect_text, invalid, refuse_unprintable
from jobs.validation.schema import PRINTABLE, text

MAX_TAGS = 50
MAX_NAME, MAX_VALUE = 60, 200
ABOUT = "`name:value`, or `name` for every value."
NAME, VALUE = rf"[^:={PRINTABLE[2:]}{{1,{MAX_NAME}}}", f"{PRINTABLE}{{0,{MAX_VALUE}}}"
TAG = text(ABOUT, pattern=f"^{NAME}(:{VALUE})?$", example="team:payments")
TAGS = {
    "type": "object",
    "maxProperties": MAX_TAGS,
    "propertyNames": {"pattern": f"^{NAME}$"},
    "additionalProperties": text(pattern=f"^{VALUE}$"),
}


def read_tags(value: object, field: str = "tags") -> Json:
    tags = expect_object(value, field)
    if len(tags) > MAX_TAGS:
        raise invalid(field, f"{len(tags)} tags are too many", f"at most {MAX_TAGS}")
    for name, given in tags.items():
        if not is_name(name):
            hint = f"1 to {MAX_NAME} printable characters, no colon and no equals sign"
            raise invalid(field, f"{abbreviate(name)} is not the name of a tag", hint)
        refuse_unprintable(name, field)
        expect_text(given, f"{field}.{name}", "the value of a tag", MAX_VALUE)
        refuse_unprintable(given, f"{field}.{name}")
    return tags


def read_tag(value: object, field: str = "tag") -> tuple[str, str]:
    """Return the name and the value of a tag; an empty value stands for every value."""
    name, _, content = value.partition(":") if isinstance(value, str) else ("", "", "")
    hint = "name:value, or the name alone for every value: team:payments, team"
    if not (is_name(name) and len(content) <= MAX_VALUE):
        raise invalid(field, f"{abbreviate(value)} is not a tag", hint)
    refuse_unprintable(name + content, field, hint)
    return name, content


def is_name(text: str) -> bool:
    """Refuse an equals sign too: `team=payments` would else be the name of a tag that no job has."""
    return 1 <= len(text) <= MAX_NAME and not {":", "="} & set(text)
