"""State in OpenAPI what a ledger takes of a field of the worker's protocol beyond its type: runs/ledger/ checks it."""

from jobs.validation.schema import Schema, obj, text
from runs.ledger.checks import FINGERPRINT, MAX_CLAIM_SEQ, MAX_DELAY, NEXT_STATES
from runs.ledger.remote import MAX_DECLARATIONS, MAX_TARGETS
from runs.models import ErrorClass
from scheduler_project.sdk.ledger.clock_skew import MAX_SKEW_MS
from scheduler_project.sdk.ledger.interface import (
    MAX_CLAIMS,
    MAX_HELD,
    MAX_SLOTS,
    MAX_STOPPING,
    Beat,
    ClaimRequest,
    WorkerInfo,
)
from scheduler_project.sdk.ledger.wire import DeclarationNames, DeclareBody, ReportBody, RunEnding
from scheduler_project.sdk.outcomes import Outcome
from scheduler_project.sdk.retries import Verdict

LEASE = {"minimum": 2, "maximum": 3600}
SLOTS = {"minimum": 0, "maximum": MAX_SLOTS}
TARGETS = {"maxItems": MAX_TARGETS}
DECLARED = obj({"name": text()}, required=("name",), additionalProperties=True, title="WorkerDeclaration")
BOUNDS: dict[tuple[type, str], Schema] = {
    (WorkerInfo, "slots"): {"minimum": 1, "maximum": MAX_SLOTS},
    (WorkerInfo, "lease"): LEASE,
    (WorkerInfo, "known_targets"): TARGETS,
    (Beat, "lease"): LEASE,
    (Beat, "slots"): SLOTS,
    (Beat, "busy"): SLOTS,
    (Beat, "foreign_busy"): SLOTS,
    (Beat, "skew_ms"): {"minimum": -MAX_SKEW_MS, "maximum": MAX_SKEW_MS},
    (Beat, "held"): {"maxItems": MAX_HELD},
    (Beat, "stopping"): {"maxItems": MAX_STOPPING},
    (ClaimRequest, "limit"): {"minimum": 1, "maximum": MAX_CLAIMS},
    (ClaimRequest, "known_targets"): TARGETS,
    (ReportBody, "ended"): {"maxItems": MAX_CLAIMS},
    (RunEnding, "claim_seq"): {"minimum": 1, "maximum": MAX_CLAIM_SEQ},
    (Outcome, "kind"): {"enum": list(NEXT_STATES)},
    (Outcome, "error_class"): {"enum": list(ErrorClass.values)},
    (Outcome, "fingerprint"): {"pattern": f"^{FINGERPRINT.pattern}$"},
    (Verdict, "state"): {"enum": sorted({str(state) for found in NEXT_STATES.values() for state in found})},
    (Verdict, "delay"): {"minimum": 0, "maximum": MAX_DELAY},
    (DeclareBody, "declarations"): {"maxItems": MAX_DECLARATIONS, "items": DECLARED},
    (DeclarationNames, "names"): {"maxItems": MAX_DECLARATIONS},
}
