-- Dead letters, by error: the open ones, the redrives of a group, and the decisions.

-- name: tenants_with_dead_letters
-- Tenants with open dead letters, by one probe each.
{{distinct_values(tenant_id, beatkeeper_dead_letter, decision = '')}} LIMIT %(most)s;

-- name: groups
-- Open dead letters by tenant and fingerprint, the latest death first. Groups by loose index scan; of each the first
-- and the last by a probe, the count up to a bound, and the jobs of the latest few.
WITH RECURSIVE grouped (tenant_id, fingerprint, number) AS (
    SELECT tenant.id, first.fingerprint, 1
    FROM unnest(%(tenants)s::int[]) AS tenant (id)
    CROSS JOIN LATERAL (
        SELECT dead.fingerprint FROM beatkeeper_dead_letter dead
        WHERE dead.decision = '' AND dead.tenant_id = tenant.id
          AND (%(fingerprint)s::text IS NULL OR dead.fingerprint = %(fingerprint)s)
        ORDER BY dead.fingerprint LIMIT 1
    ) first
    UNION ALL
    SELECT grouped.tenant_id, next.fingerprint, grouped.number + 1
    FROM grouped CROSS JOIN LATERAL (
        SELECT dead.fingerprint FROM beatkeeper_dead_letter dead
        WHERE dead.decision = '' AND dead.tenant_id = grouped.tenant_id
          AND dead.fingerprint > grouped.fingerprint AND %(fingerprint)s::text IS NULL
        ORDER BY dead.fingerprint LIMIT 1
    ) next
    WHERE grouped.number < %(most)s
)
SELECT grouped.tenant_id, grouped.fingerprint, counted.count, earliest.died_at AS first_at,
       latest.died_at AS last_at, latest.run_id AS newest, latest.error_class, latest.error_type, latest.error_line,
       touched.jobs
FROM grouped
CROSS JOIN LATERAL (
    SELECT count(*)::int AS count FROM (
        SELECT FROM beatkeeper_dead_letter dead
        WHERE dead.decision = '' AND dead.tenant_id = grouped.tenant_id
          AND dead.fingerprint = grouped.fingerprint
        LIMIT %(most_counted)s
    ) open
) counted
CROSS JOIN LATERAL (
    SELECT dead.died_at FROM beatkeeper_dead_letter dead
    WHERE dead.decision = '' AND dead.tenant_id = grouped.tenant_id AND dead.fingerprint = grouped.fingerprint
    ORDER BY dead.died_at, dead.run_id LIMIT 1
) earliest
CROSS JOIN LATERAL (
    SELECT dead.* FROM beatkeeper_dead_letter dead
    WHERE dead.decision = '' AND dead.tenant_id = grouped.tenant_id AND dead.fingerprint = grouped.fingerprint
    ORDER BY dead.died_at DESC, dead.run_id DESC LIMIT 1
) latest
CROSS JOIN LATERAL (
    SELECT array_agg(DISTINCT recent.job_id) AS jobs FROM (
        SELECT dead.job_id FROM beatkeeper_dead_letter dead
        WHERE dead.decision = '' AND dead.tenant_id = grouped.tenant_id
          AND dead.fingerprint = grouped.fingerprint
        ORDER BY dead.died_at DESC, dead.run_id DESC LIMIT 50
    ) recent
) touched
ORDER BY latest.died_at DESC, grouped.fingerprint;

-- name: dead_letters_after
-- Of a group that is redriven the next dead letters, oldest death first, from where it has come to; what died later is
-- not of this redrive, or what it runs again and dies again would go round for ever. What it could not run is marked.
SELECT dead.run_id, dead.died_at FROM beatkeeper_dead_letter dead
WHERE dead.decision = '' AND dead.tenant_id = %(tenant)s AND dead.fingerprint = %(fingerprint)s
  AND (dead.died_at, dead.run_id) > (%(cursor_at)s, %(cursor)s::uuid) AND dead.died_at <= %(until)s
  AND dead.redrive_id IS DISTINCT FROM %(redrive)s
ORDER BY dead.died_at, dead.run_id LIMIT %(most)s;

-- name: others_are_dying
-- Whether a transaction that began before the request may still leave a dead letter: every one that ends runs has
-- this lock.
SELECT EXISTS (
    SELECT FROM pg_locks lock
    LEFT JOIN pg_stat_activity backend USING (pid)
    WHERE lock.locktype = 'relation' AND lock.relation = 'beatkeeper_run'::regclass AND lock.mode = 'RowExclusiveLock'
      AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND lock.pid <> pg_backend_pid()
      -- Of another database user it is not shown.
      AND coalesce(backend.xact_start, '-infinity') <= %(until)s
);

-- name: dismiss_group
-- So many of a group, oldest death first. SKIP LOCKED: one that another person decides at this moment is theirs.
WITH chosen AS MATERIALIZED (
    SELECT dead.run_id FROM beatkeeper_dead_letter dead
    WHERE dead.decision = '' AND dead.tenant_id = %(tenant)s AND dead.fingerprint = %(fingerprint)s
      AND dead.died_at <= %(now)s
    ORDER BY dead.died_at, dead.run_id LIMIT %(most)s
    FOR UPDATE SKIP LOCKED
)
UPDATE beatkeeper_dead_letter dead
SET decision = 'dismissed', decided_at = %(now)s, decided_by = %(by)s, reason = %(reason)s, redrive_id = NULL
FROM chosen WHERE dead.run_id = chosen.run_id AND dead.decision = ''
RETURNING dead.run_id;

-- name: redrives_are_due
-- Whether a group on its way has its next runs to make.
SELECT EXISTS (SELECT FROM beatkeeper_redrive WHERE state = 'working' AND next_at <= clock_timestamp());

-- name: purge_dead_letters
-- Decided long ago.
DELETE FROM beatkeeper_dead_letter WHERE run_id IN (
    SELECT run_id FROM beatkeeper_dead_letter WHERE decision <> '' AND decided_at < %(before)s LIMIT 10000
);

-- name: unannounced_dead_letters
-- Dead runs that not all listeners have accepted yet, in the order of their deaths, behind the one that was read last.
SELECT run_id, tenant_id, job_id, died_at, fingerprint, error_class, error_type, error_line
FROM beatkeeper_dead_letter
WHERE NOT announced AND (died_at, run_id) > (%(died_at)s, %(run)s::uuid)
ORDER BY died_at, run_id LIMIT %(most)s;

-- name: note_announced
UPDATE beatkeeper_dead_letter SET announced = true WHERE run_id = ANY (%(runs)s::uuid[]) AND NOT announced;
