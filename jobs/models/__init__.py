"""Store what should run and when. Nothing here knows of runs."""

from .allowances import Allowance
from .api_keys import ApiKey
from .calendars import Calendar
from .declarations import Declaration, RunRequest
from .idempotency import IdempotentRequest
from .imported_tasks import ImportedTask
from .jobs import DEFAULT_PRIORITY, JOB_SLICES, Job, JobClock, JobStatus, JobVersion
from .overlap import COUNTING_POLICIES, COUNTING_WITHOUT_GATE, OVERLAP_POLICIES, Overlap, OverlapPolicy
from .overrides import Override
from .pools import Pool
from .secrets import Secret
from .suspensions import Effect, Suspension, SuspensionKind, SuspensionState
from .tenants import Membership, Role, Tenant, slug_validator
