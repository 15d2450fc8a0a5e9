"""What other apps may do inside a change of a job. `runs` listens (runs/listeners.py); jobs never calls up."""

from django.dispatch import Signal

# The clock row is locked and `now` is read: settle what was due by then under the old schedule.  job, now
clock_locked = Signal()
# A one-time job asks for this instant: answer with a TakenInstant if it has its run already.  job_id, at
instant_asked = Signal()
# No planned times stood between the two instants, because of `reason`.  job, spec, from_at, to_at, reason
times_missed = Signal()
# A version was written; `spec` is it.  job, spec
spec_written = Signal()
# The job goes no further: end what is unfinished of it.  job, now, reason
job_stopped = Signal()
