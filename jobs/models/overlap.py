"""The overlap policies of a job: one row of properties each.

Code and SQL ask for a property of a policy, never for its name. A new policy is a choice and a row here, its name in
the SDK's `OVERLAPS`, and a rule in `runs/scheduler/trigger/overlap.py` if no property says what it does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db import models


class Overlap(models.TextChoices):
    """Choices for a planned time that comes while an earlier scheduled run of its job is unfinished."""

    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    BUFFER_ALL = "buffer_all"
    CANCEL_OTHER = "cancel_other"
    TERMINATE_OTHER = "terminate_other"
    ALLOW_ALL = "allow_all"


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapPolicy:
    # What becomes of the new run, for forms and the API's reference.
    words: str
    # An unfinished run of the job is in the way of the next one.
    counts_unfinished: bool = True
    # The new run waits until the others have ended; otherwise it is skipped.
    waits: bool = False
    # While one run waits, further ones are skipped.
    one_waits: bool = False
    # The others are ended for the new run.
    ends_others: bool = False
    # They are killed at once instead of being asked to end.
    kills_others: bool = False

    @property
    def needs_gate(self) -> bool:
        """Return whether trigger and report exclude each other by the job's gate before they count its runs.

        A policy whose runs never wait needs none: what it decides is right whatever ends at the same moment.
        """
        return self.waits


OVERLAP_POLICIES: Mapping[str, OverlapPolicy] = {
    Overlap.SKIP: OverlapPolicy(words="the new time gets no run"),
    Overlap.BUFFER_ONE: OverlapPolicy(
        words="the new run waits; while one waits, further times get none", waits=True, one_waits=True
    ),
    Overlap.BUFFER_ALL: OverlapPolicy(words="every run waits its turn", waits=True),
    Overlap.CANCEL_OTHER: OverlapPolicy(
        words="the earlier run is cancelled, then the new one goes", waits=True, ends_others=True
    ),
    Overlap.TERMINATE_OTHER: OverlapPolicy(
        words="the earlier run is killed at once, then the new one goes",
        waits=True,
        ends_others=True,
        kills_others=True,
    ),
    Overlap.ALLOW_ALL: OverlapPolicy(words="they run side by side", counts_unfinished=False),
}
COUNTING_POLICIES = [name for name, policy in OVERLAP_POLICIES.items() if policy.counts_unfinished]
# Of these the query that reads due jobs looks for an unfinished run; for the others the gate is locked first.
COUNTING_WITHOUT_GATE = [name for name in COUNTING_POLICIES if not OVERLAP_POLICIES[name].needs_gate]
