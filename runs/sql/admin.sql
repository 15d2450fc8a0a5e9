-- What the admin asks; nothing here writes.

-- name: latest_runs
-- The newest run of each of these jobs within a range of ids: an index probe per job and day.
SELECT latest.job_id, latest.id, coalesce(latest.state, live.state) AS state, latest.error_line
FROM unnest(%(jobs)s::uuid[]) AS wanted (job_id)
CROSS JOIN LATERAL (
    SELECT run.job_id, run.id, run.state, run.error_line FROM beatkeeper_run run
    WHERE run.job_id = wanted.job_id AND run.id >= %(first)s AND run.id < %(beyond)s
    ORDER BY run.id DESC LIMIT 1
) latest
LEFT JOIN beatkeeper_live_run live ON live.id = latest.id;
