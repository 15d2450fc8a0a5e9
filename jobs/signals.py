"""What other apps may do inside a change of a job. `runs` listens (runs/listeners.py); jobs never calls up."""

from django.dispatch import Signal

# The clock row is locked and `now` is read: settle what was due by then under the old schedule.  job, now
clock_locked = Signal()
# Somebody asks for a run at this instant: answer with a TakenInstant if it has its run already.  job, at
instant_asked = Signal()
# Does this instant lie among times that were told as missed? Answer with the end of these.  job, at
missed_instant_asked = Signal()
# No planned times stood in [from_at, to_at), because of `reason`: settle them by the job's catch-up policy, or by
# `policy`, and answer with a Missed.  job, spec, from_at, to_at, now, reason, policy
times_missed = Signal()
# What would become of them? Answer the same, and change nothing.  job, spec, from_at, to_at, now, policy
times_asked = Signal()
# What do the workers of this pool know, as far as they run for the tenant? Answer with KnownTargets.  pool, tenant
known_targets_asked = Signal()
# Which jobs are held by their breakers? Answer with a query of their ids.
held_jobs_asked = Signal()
# A version was written; `spec` is it.  job, spec
spec_written = Signal()
# The job goes no further: end what is unfinished of it.  job, now, reason
job_stopped = Signal()
