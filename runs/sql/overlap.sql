-- What becomes of a planned time while an earlier scheduled run of its job is unfinished. The caller holds the job's
-- gate, and reads in a statement of its own: it sees what was committed while it waited for the gate.

-- name: make_gates
-- Of jobs whose policy needs one. Edits make it; one that is missing is made again.
INSERT INTO beatkeeper_job_gate (job_id)
SELECT job_id FROM unnest(%(jobs)s::uuid[]) AS job (job_id) ORDER BY job_id
ON CONFLICT (job_id) DO NOTHING;

-- name: take_gates
-- Jobs whose gates are ours now, or that have none. SKIP LOCKED: the holder of a gate may release or end runs of its
-- job; the job is left for the next pass. By job, or two batches could wait for each other in a circle.
WITH taken AS MATERIALIZED (
    SELECT job_id FROM beatkeeper_job_gate WHERE job_id = ANY (%(jobs)s::uuid[]) ORDER BY job_id FOR UPDATE SKIP LOCKED
)
SELECT job_id FROM taken
UNION ALL
SELECT job.id FROM unnest(%(jobs)s::uuid[]) AS job (id)
LEFT JOIN beatkeeper_job_gate gate ON gate.job_id = job.id
WHERE gate.job_id IS NULL;

-- name: wait_for_gates
-- For an edit, which holds the clock of its job and cannot come again.
SELECT job_id FROM beatkeeper_job_gate WHERE job_id = ANY (%(jobs)s::uuid[]) ORDER BY job_id FOR UPDATE;

-- name: unfinished_of_jobs
-- Jobs with unfinished scheduled runs, and whether one of these waits for the others. Their number is nobody's
-- business.
SELECT job.id, waiting.id IS NOT NULL
FROM unnest(%(jobs)s::uuid[]) AS job (id)
CROSS JOIN LATERAL (
    SELECT live.id FROM beatkeeper_live_run live
    WHERE live.job_id = job.id AND {{scheduled(live)}}
    LIMIT 1
) unfinished
LEFT JOIN LATERAL (
    SELECT live.id FROM beatkeeper_live_run live
    WHERE live.state = 'blocked' AND live.reason = 'overlap' AND live.job_id = job.id
    LIMIT 1
) waiting ON true;

-- name: jobs_without_others
-- A first look at jobs with waiting runs, which costs no locks: most of them wait for good reason.
SELECT job.id
FROM unnest(%(jobs)s::uuid[]) AS job (id)
LEFT JOIN LATERAL (
    {{under_way(job.id)}}
) under_way ON true
WHERE under_way.id IS NULL;

-- name: release_all_waiting
-- Of a job whose runs do not wait for each other any more.
UPDATE beatkeeper_live_run live
SET state = CASE WHEN live.available_at > clock_timestamp() THEN 'delayed' ELSE 'ready' END,
    reason = CASE WHEN live.available_at > clock_timestamp() THEN 'flexible_window' ELSE '' END,
    wake_at = CASE WHEN live.available_at > clock_timestamp() THEN live.available_at END
WHERE live.state = 'blocked' AND live.reason = 'overlap' AND live.job_id = %(job)s;

-- name: lock_others
-- The unfinished scheduled runs of these jobs, and whether they are ours now: one that somebody has at this moment,
-- or that has just ended, is not. Of each job no more than so many that no worker has.
WITH others AS MATERIALIZED (
    SELECT live.id, live.job_id FROM beatkeeper_live_run live
    WHERE live.job_id = ANY (%(jobs)s::uuid[]) AND live.state = 'running'
      AND {{scheduled(live)}}
    UNION ALL
    SELECT unclaimed.id, job.id
    FROM unnest(%(jobs)s::uuid[]) AS job (id)
    CROSS JOIN LATERAL (
        SELECT live.id FROM beatkeeper_live_run live
        WHERE live.job_id = job.id AND live.state <> 'running' AND {{scheduled(live)}}
        LIMIT %(most)s
    ) unclaimed
), locked AS MATERIALIZED (
    SELECT live.id, live.state FROM beatkeeper_live_run live JOIN others ON others.id = live.id
    ORDER BY live.id FOR UPDATE OF live SKIP LOCKED
)
SELECT others.id, others.job_id, locked.state FROM others LEFT JOIN locked ON locked.id = others.id;

-- name: wait_for_others
-- As above, for an edit, which cannot come again: it waits for claims and reports that have a run.
SELECT live.id FROM beatkeeper_live_run live
WHERE live.job_id = ANY (%(jobs)s::uuid[]) AND {{scheduled(live)}}
ORDER BY live.id FOR UPDATE;
