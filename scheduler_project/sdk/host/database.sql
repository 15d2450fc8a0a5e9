-- name: declared
-- Read the declared jobs of a pool as they were declared, as they were applied and as they are now, edits included.
SELECT declaration.name, pool.slug AS pool, declaration.source, declaration.spec, declaration.applied,
       declaration.error, declaration.applied_at IS NULL AS waiting, declaration.withdrawn_at IS NOT NULL AS withdrawn,
       coalesce(job.status, '') AS status,
       CASE WHEN job.version > (declaration.applied ->> 'version')::int THEN current_version.created_by ELSE '' END AS edited_by,
       -- All but keys, states and times: a field that a later version of the platform adds is compared, too.
       CASE WHEN job.id IS NOT NULL THEN
           to_jsonb(current_version) - '{id, job_id, target_key, calendar_id, secret_names, job_fields, anchor_at, created_at, created_by}'::text[]
           || to_jsonb(job) - '{id, tenant_id, pool_id, status, status_reason, status_by, status_at, paused_until,
                                created_at, updated_at, deleted_at}'::text[]
           || jsonb_build_object('pool', job_pool.slug)
       END AS present
FROM beatkeeper_declaration declaration
JOIN beatkeeper_tenant tenant ON tenant.id = declaration.tenant_id
JOIN beatkeeper_pool pool ON pool.id = declaration.pool_id
LEFT JOIN beatkeeper_job job ON job.id = declaration.job_id AND job.deleted_at IS NULL
LEFT JOIN beatkeeper_job_version current_version
    ON current_version.job_id = job.id AND current_version.version = job.version
LEFT JOIN beatkeeper_pool job_pool ON job_pool.id = job.pool_id
WHERE tenant.slug = %(tenant)s AND pool.slug = %(pool)s
  AND (%(names)s::text[] IS NULL OR declaration.name = ANY (%(names)s))
ORDER BY declaration.name;

-- name: declare_again
-- Undo edits by hand: the platform applies these declarations as if they were new.
UPDATE beatkeeper_declaration declaration SET applied_at = NULL, declared_at = now()
FROM beatkeeper_tenant tenant
WHERE tenant.id = declaration.tenant_id AND tenant.slug = %(tenant)s
  AND declaration.name = ANY (%(names)s) AND declaration.withdrawn_at IS NULL;

-- name: withdraw
-- Withdraw what a code base no longer declares; the platform cancels the jobs.
UPDATE beatkeeper_declaration declaration
SET withdrawn_at = now(), applied_at = NULL, error = '', declared_at = now()
FROM beatkeeper_tenant tenant, beatkeeper_pool pool
WHERE tenant.id = declaration.tenant_id AND tenant.slug = %(tenant)s
  AND pool.id = declaration.pool_id AND pool.slug = %(pool)s
  AND declaration.name = ANY (%(names)s) AND declaration.withdrawn_at IS NULL;

-- name: request_run
-- Insert a request once per key; a repetition finds the first one.
INSERT INTO beatkeeper_run_request (id, tenant_id, pool_id, key, spec, at)
SELECT %(id)s, tenant.id, pool.id, %(key)s, %(spec)s, %(at)s
FROM beatkeeper_tenant tenant, beatkeeper_pool pool
WHERE tenant.slug = %(tenant)s AND pool.slug = %(pool)s
ON CONFLICT (tenant_id, key) DO NOTHING;

-- name: requested_run
-- Read a request with its own state until there is a run, then with the run's.
SELECT request.id, request.key, request.spec, request.at, request.job_id AS job, request.run, request.error,
       CASE WHEN request.error <> '' THEN 'refused'
            WHEN run.state IS NOT NULL THEN run.state
            WHEN live.state IS NOT NULL THEN live.state
            WHEN request.cancel_requested_at IS NOT NULL AND request.applied_at IS NOT NULL THEN 'cancelled'
            WHEN job.status = 'cancelled' OR job.deleted_at IS NOT NULL THEN 'cancelled'
            WHEN request.applied_at IS NOT NULL OR request.job_id IS NOT NULL THEN 'scheduled'
            ELSE 'requested' END AS state,
       run.result, coalesce(nullif(run.error_line, ''), request.error) AS error_line
FROM beatkeeper_run_request request
JOIN beatkeeper_tenant tenant ON tenant.id = request.tenant_id
LEFT JOIN beatkeeper_job job ON job.id = request.job_id
LEFT JOIN beatkeeper_run run ON run.id = request.run
LEFT JOIN beatkeeper_live_run live ON live.id = request.run
WHERE tenant.slug = %(tenant)s AND (request.id = %(id)s OR request.key = %(key)s);

-- name: cancel_requested_run
-- Cancel a request: the platform processes it once more.
UPDATE beatkeeper_run_request request SET cancel_requested_at = now(), applied_at = NULL
FROM beatkeeper_tenant tenant
WHERE tenant.id = request.tenant_id AND tenant.slug = %(tenant)s
  AND request.id = %(id)s AND request.cancel_requested_at IS NULL;
