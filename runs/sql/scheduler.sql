-- Who schedules what, and how far behind they are. Nothing here decides anything.

-- name: write_scheduler_status
-- The status of one incarnation; returns the database's time.
INSERT INTO beatkeeper_scheduler_node
    (incarnation, host, pid, job_slices, pools, runs_recovery, loops, passes, skew_ms, started_at, last_seen_at)
VALUES (%(incarnation)s, %(host)s, %(pid)s, %(job_slices)s, %(pools)s, %(runs_recovery)s, %(loops)s, %(passes)s, %(skew_ms)s,
        clock_timestamp(), clock_timestamp())
ON CONFLICT (incarnation) DO UPDATE
    SET job_slices = excluded.job_slices, pools = excluded.pools, runs_recovery = excluded.runs_recovery, loops = excluded.loops,
        passes = excluded.passes, skew_ms = coalesce(excluded.skew_ms, beatkeeper_scheduler_node.skew_ms),
        last_seen_at = excluded.last_seen_at, left_at = NULL
RETURNING last_seen_at;

-- name: scheduler_leaves
-- A clean stop: its locks go with its sessions.
UPDATE beatkeeper_scheduler_node
SET left_at = clock_timestamp(), last_seen_at = clock_timestamp(), job_slices = 0, pools = 0, runs_recovery = false
WHERE incarnation = %(incarnation)s;

-- name: purge_schedulers
-- Incarnations that ended long ago.
DELETE FROM beatkeeper_scheduler_node WHERE last_seen_at < %(before)s;

-- name: watermarks
-- The oldest due and unfired planned time of each slice: one index look-up each.
SELECT slice.number, first.next_run_at
FROM generate_series(0, %(slices)s - 1) AS slice (number)
CROSS JOIN LATERAL (
    SELECT clock.next_run_at FROM beatkeeper_job_clock clock
    WHERE clock.slice = slice.number AND clock.next_run_at <= clock_timestamp()
    ORDER BY clock.next_run_at LIMIT 1
) first;

-- name: oldest_waiting
-- Of each pool the run that has waited longest to be handed over among those at the head of their queue, and how many
-- queues wait. A queue that names a reason cannot go and does not count; a notice about its broker holds nothing up.
WITH RECURSIVE head (pool_id, tenant_id, available_at) AS (
    (SELECT pool_id, tenant_id, available_at FROM beatkeeper_live_run
     WHERE state = 'ready' ORDER BY pool_id, tenant_id, rank LIMIT 1)
    UNION ALL
    SELECT next.* FROM head CROSS JOIN LATERAL (
        SELECT live.pool_id, live.tenant_id, live.available_at FROM beatkeeper_live_run live
        WHERE live.state = 'ready' AND (live.pool_id, live.tenant_id) > (head.pool_id, head.tenant_id)
        ORDER BY live.pool_id, live.tenant_id, live.rank LIMIT 1
    ) next
)
SELECT head.pool_id, min(head.available_at), count(*)
FROM head
LEFT JOIN beatkeeper_queue queue ON queue.pool_id = head.pool_id AND queue.tenant_id = head.tenant_id
WHERE coalesce(queue.reason, '') = ANY (%(not_held)s)
GROUP BY head.pool_id;
