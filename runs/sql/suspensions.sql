-- Pauses and blackouts: what stands between a planned time and its run.

-- name: unsettled_suspensions
-- Every suspension that has begun by then and is not settled: few, however many there ever were.
SELECT id, kind, effect, tenant_id, pool_id, job_id, tag_name, tag_value, begins_at, least(lifted_at, ends_at), reason,
       public_id
FROM beatkeeper_suspension
WHERE settled_at IS NULL AND begins_at <= %(until)s
ORDER BY begins_at, id;

-- name: lock_over_suspension
-- A suspension that is over, held until the transaction ends; one that somebody is changing is left for the next pass.
SELECT id FROM beatkeeper_suspension
WHERE id = %(suspension)s AND settled_at IS NULL AND least(lifted_at, ends_at) <= %(now)s
FOR NO KEY UPDATE SKIP LOCKED;

-- name: end_suspension
-- A suspension that is over is recorded in the audit trail once; the second scheduler finds it settled.
WITH ended AS (
    UPDATE beatkeeper_suspension SET settled_at = clock_timestamp()
    WHERE id = %(suspension)s AND settled_at IS NULL AND least(lifted_at, ends_at) <= %(now)s
    RETURNING id, tenant_id, kind, begins_at, ends_at, lifted_at
)
INSERT INTO beatkeeper_audit_entry
    (tenant_id, actor_kind, actor, action, object_type, object_id, before, after, reason, request_id)
SELECT tenant_id, 'system', 'scheduler', 'suspension.ended', 'suspension', id::text, NULL,
       jsonb_build_object('kind', kind, 'begins_at', begins_at, 'ends_at', ends_at, 'lifted_at', lifted_at),
       CASE WHEN lifted_at IS NULL THEN 'its end has come' ELSE 'it was lifted' END, ''
FROM ended;

-- name: pauses_are_over
-- The idle probe of automatic resumption: one look into the index of the pauses that have an end.
SELECT EXISTS (
    SELECT FROM beatkeeper_job
    WHERE paused_until <= clock_timestamp() AND status = 'paused' AND deleted_at IS NULL
);

-- name: calendars_wait
-- The idle probe of re-arming: whether a calendar was edited whose jobs do not all know yet.
SELECT EXISTS (SELECT FROM beatkeeper_calendar WHERE rearmed_to IS NOT NULL);
