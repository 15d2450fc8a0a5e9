-- From ready run to wake-up: queues, shares, gates and the marks.

-- name: pools
-- What dispatch is divided by, and the brokers that the wake-ups go to.
SELECT id, broker FROM beatkeeper_pool;

-- name: pools_with_ready_runs
-- The idle probe of dispatch: one index look-up for each pool held.
SELECT held.pool_id
FROM unnest(%(pools)s::int[]) AS held (pool_id)
CROSS JOIN LATERAL (
    SELECT live.tenant_id FROM beatkeeper_live_run live
    WHERE live.state = 'ready' AND live.pool_id = held.pool_id
    ORDER BY live.tenant_id, live.rank LIMIT 1
) first;

-- name: pool
-- The pool as its owner set it, and the targets that may go there; if it is asked for, how many queues it has and how
-- many may come.
SELECT pool.slug, pool.shared,
       CASE WHEN %(count)s THEN (SELECT count(*) FROM beatkeeper_queue queue WHERE queue.pool_id = pool.id) END,
       CASE WHEN NOT %(count)s THEN NULL
            WHEN pool.shared THEN (SELECT count(*) FROM (SELECT FROM beatkeeper_tenant LIMIT 2) several)
            ELSE (SELECT count(*) FROM beatkeeper_pool_tenant member WHERE member.pool_id = pool.id) END,
       pool.exported_tasks::text[] || ARRAY(SELECT 'kind:' || kind FROM unnest(pool.exported_kinds) AS export (kind)),
       pool.broker, pool.broker_queue, pool.queued_since
FROM beatkeeper_pool pool WHERE pool.id = %(pool)s;

-- name: living_workers
-- Workers of the pool that may claim, the slots they have for us, and the one tenant they work for if they do.
SELECT worker.incarnation, greatest(0, worker.slots - worker.foreign_busy), worker.tenant_id
FROM beatkeeper_worker_node worker
WHERE worker.pool_id = %(pool)s AND {{living_worker(worker, %(now)s)}};

-- name: targets_of_workers
-- Of what each of these workers knows that which the pool exports, and for whom: none, for everybody.
SELECT worker.incarnation, worker.tenant_id,
       ARRAY(SELECT unnest(worker.known_targets)::text INTERSECT SELECT unnest(%(exported)s::text[]))
FROM beatkeeper_worker_node worker
WHERE worker.incarnation = ANY (%(nodes)s::uuid[]);

-- name: queues_with_ready_runs
-- Tenants with work in the pool and the first run of each, by one probe, however long their backlogs.
WITH RECURSIVE first (tenant_id, rank, id) AS (
    (SELECT live.tenant_id, live.rank, live.id FROM beatkeeper_live_run live
     WHERE live.state = 'ready' AND live.pool_id = %(pool)s
     ORDER BY live.tenant_id, live.rank, live.id LIMIT 1)
    UNION ALL
    SELECT next.* FROM first CROSS JOIN LATERAL (
        SELECT live.tenant_id, live.rank, live.id FROM beatkeeper_live_run live
        WHERE live.state = 'ready' AND live.pool_id = %(pool)s AND live.tenant_id > first.tenant_id
        ORDER BY live.tenant_id, live.rank, live.id LIMIT 1
    ) next
)
SELECT tenant_id, rank, id::text FROM first;

-- name: queues_known_with_ready_runs
-- The same for these tenants, each read from the given rank and id on.
SELECT first.tenant_id, first.rank, first.id::text
FROM unnest(%(tenants)s::int[], %(ranks)s::bigint[], %(ids)s::uuid[]) AS queue (tenant_id, rank, run_id)
CROSS JOIN LATERAL (
    SELECT live.tenant_id, live.rank, live.id FROM beatkeeper_live_run live
    WHERE live.state = 'ready' AND live.pool_id = %(pool)s AND live.tenant_id = queue.tenant_id
      AND (live.rank, live.id) >= (queue.rank, queue.run_id)
    ORDER BY live.rank, live.id LIMIT 1
) first;

-- name: occupied
-- Exact counts of what each queue has handed over: queued, and if it is asked for, running and the slots that takes,
-- by tenant and by worker. Of one snapshot: by two, a run that is claimed in between could be in neither.
-- Runs claimed together, also of several queues, share a slot, and all but the last two digits of their tokens; those
-- digits of the first are 00.
WITH running AS MATERIALIZED (
    SELECT tenant_id, worker, claim_token AS token FROM beatkeeper_live_run
    WHERE %(count)s AND state = 'running' AND pool_id = %(pool)s
), shared AS MATERIALIZED (
    -- Of most claims one run is left. Grouping all by their claims would take most of the time.
    SELECT left(token::text, -2) AS claim FROM running WHERE get_byte(uuid_send(token), 15) > 0
), counted AS (
    SELECT tenant_id, worker, count(*) AS running, count(*)::float8 AS slots, 0 AS queued, 
           NULL::timestamptz AS oldest_queued_at
    FROM running
    WHERE left(token::text, -2) NOT IN (SELECT claim FROM shared)
    GROUP BY tenant_id, worker
    UNION ALL
    SELECT tenant_id, worker, 1, 1.0 / count(*) OVER (PARTITION BY worker, left(token::text, -2)), 0, NULL FROM running
    WHERE left(token::text, -2) IN (SELECT claim FROM shared)
    UNION ALL
    SELECT live.tenant_id, NULL, 0, 0, count(*), min(live.queued_at) FROM beatkeeper_live_run live
    WHERE {{still_queued(live, %(pool)s, %(since)s::timestamptz)}} GROUP BY live.tenant_id
)
SELECT tenant.id, sum(counted.running)::int, sum(counted.slots)::float8, sum(counted.queued)::int, counted.worker,
       tenant.weight, min(counted.oldest_queued_at)
FROM counted JOIN beatkeeper_tenant tenant ON tenant.id = counted.tenant_id
GROUP BY GROUPING SETS ((tenant.id, tenant.weight), (counted.worker))
HAVING tenant.id IS NOT NULL OR counted.worker IS NOT NULL;

-- name: queued_for_own
-- Of tenants with workers of their own, how much is queued of each target.
SELECT live.tenant_id, live.target_key, count(*)::int FROM beatkeeper_live_run live
WHERE {{still_queued(live, %(pool)s, %(since)s::timestamptz)}} AND live.tenant_id = ANY (%(tenants)s::int[])
GROUP BY live.tenant_id, live.target_key;

-- name: queues
-- The queues of these tenants, made or not yet made, and those that still show a reason.
WITH wanted (tenant_id) AS (
    SELECT unnest(%(tenants)s::int[])
    UNION
    SELECT queue.tenant_id FROM beatkeeper_queue queue WHERE queue.pool_id = %(pool)s AND queue.reason <> ''
)
SELECT tenant.id, tenant.slug, tenant.weight, tenant.max_running, tenant.rate_limit,
       tenant.daily_quota, queue.id, coalesce(queue.broker_queue, ''), queue.tokens, queue.tokens_at, queue.day,
       coalesce(queue.day_count, 0), coalesce(queue.reason, ''), coalesce(queue.queued, 0),
       {{pool_is_open(pool, tenant.id)}}
FROM wanted
JOIN beatkeeper_tenant tenant ON tenant.id = wanted.tenant_id
JOIN beatkeeper_pool pool ON pool.id = %(pool)s
LEFT JOIN beatkeeper_queue queue ON queue.pool_id = %(pool)s AND queue.tenant_id = tenant.id;

-- name: running_of_limited
-- What runs of queues with a limit. Counted after what is queued: a run that is claimed in between is in both.
SELECT live.tenant_id, count(*)::int FROM beatkeeper_live_run live
WHERE live.state = 'running' AND live.pool_id = %(pool)s AND live.tenant_id = ANY (%(tenants)s::int[])
GROUP BY live.tenant_id;

-- name: make_queues
-- A queue exists from the first run of its tenant in the pool.
INSERT INTO beatkeeper_queue (pool_id, tenant_id, broker_queue)
SELECT %(pool)s, tenant_id, broker_queue
FROM unnest(%(tenants)s::int[], %(broker_queues)s::text[]) AS new (tenant_id, broker_queue)
ORDER BY tenant_id
ON CONFLICT (pool_id, tenant_id) DO NOTHING;

-- name: uncount_returned
-- Runs of these queues that were marked and came back before a worker claimed them: how many of the day's count.
-- Cleared under the lock, so that no pass counts one twice; one that is being cancelled is left out.
WITH picked AS MATERIALIZED (
    SELECT live.id, live.tenant_id, live.queued_at FROM beatkeeper_live_run live
    WHERE live.state = 'ready' AND live.queued_at IS NOT NULL AND live.pool_id = %(pool)s
      AND live.tenant_id = ANY (%(tenants)s::int[])
    ORDER BY live.id LIMIT %(most)s FOR UPDATE SKIP LOCKED
), cleared AS (
    UPDATE beatkeeper_live_run live SET queued_at = NULL FROM picked WHERE live.id = picked.id
)
SELECT tenant_id, count(*) FILTER (WHERE queued_at >= %(midnight)s)::int FROM picked GROUP BY tenant_id;

-- name: write_queues
-- What changed of a queue: why it cannot go, its bucket, its count of the day, and of what is queued.
UPDATE beatkeeper_queue queue
SET reason = new.reason, tokens = new.tokens, tokens_at = new.tokens_at, day = new.day, day_count = new.day_count,
    queued = new.queued
FROM (
    SELECT * FROM unnest(%(tenant_id)s::int[], %(reason)s::text[], %(tokens)s::float8[], %(tokens_at)s::timestamptz[],
                         %(day)s::date[], %(day_count)s::bigint[], %(queued)s::int[])
        AS given (tenant_id, reason, tokens, tokens_at, day, day_count, queued)
    ORDER BY tenant_id
) new
WHERE queue.pool_id = %(pool)s AND queue.tenant_id = new.tenant_id;

-- name: broker_queues_of_pools
-- What the brokers of these pools must hold: of each pool one queue, and one for each tenant with workers of its own.
SELECT id, broker_queue FROM beatkeeper_pool WHERE id = ANY (%(pools)s::int[])
UNION
SELECT queue.pool_id, queue.broker_queue
FROM beatkeeper_worker_node worker
JOIN beatkeeper_queue queue ON queue.pool_id = worker.pool_id AND queue.tenant_id = worker.tenant_id
WHERE worker.pool_id = ANY (%(pools)s::int[]) AND worker.state IN ('active', 'draining');

-- name: name_pool_queues
-- A tenant's slug has no dot, so the name of a pool's queue is never that of a tenant's. A worker hears of the name with
-- each answer.
UPDATE beatkeeper_pool pool SET broker_queue = named.broker_queue
FROM unnest(%(pools)s::int[], %(versions)s::text[]) AS held (pool_id, version)
CROSS JOIN LATERAL (
    SELECT concat_ws('.', %(prefix)s::text, slug, 'all.tenants', held.version) AS broker_queue
    FROM beatkeeper_pool WHERE id = held.pool_id
) named
WHERE pool.id = held.pool_id AND pool.broker_queue <> named.broker_queue;

-- name: rename_queues
-- The queues of a pool whose broker needs others. A tenant's own workers learn of queues by their ids: with a new id a
-- worker consumes from the new broker queue, and from the old one until it is empty.
WITH renamed AS MATERIALIZED (
    SELECT queue.id, named.broker_queue
    FROM unnest(%(pools)s::int[], %(versions)s::text[]) AS held (pool_id, version)
    JOIN beatkeeper_pool pool ON pool.id = held.pool_id
    JOIN beatkeeper_queue queue ON queue.pool_id = pool.id
    JOIN beatkeeper_tenant tenant ON tenant.id = queue.tenant_id
    CROSS JOIN LATERAL (
        SELECT concat_ws('.', %(prefix)s::text, pool.slug, tenant.slug, held.version) AS broker_queue
    ) named
    WHERE queue.broker_queue <> named.broker_queue
    -- By id, as every pass that renames queues of several pools.
    ORDER BY queue.id FOR UPDATE OF queue
)
UPDATE beatkeeper_queue queue SET id = DEFAULT, broker_queue = renamed.broker_queue
FROM renamed WHERE queue.id = renamed.id;

-- name: next_ready
-- The best few of each queue behind the run that was read last, in rank order, locked: priority with aging, exactly.
-- SKIP LOCKED leaves out what somebody cancels, releases or claims at this moment.
SELECT best.ctid, best.tenant_id, best.rank, best.target_key,
       CASE WHEN gate.max_running IS NOT NULL THEN best.job_id END,
       {{held_by(best, job)}}, CASE WHEN %(need_jobs)s THEN job.id END, CASE WHEN %(need_jobs)s THEN job.tags::text END,
       best.id::text
FROM unnest(%(tenants)s::int[], %(ranks)s::bigint[], %(ids)s::uuid[], %(counts)s::int[])
    AS queue (tenant_id, rank, run_id, count)
CROSS JOIN LATERAL (
    SELECT live.ctid, live.id, live.tenant_id, live.job_id, live.rank, live.target_key, live.trigger, live.gated
    FROM beatkeeper_live_run live
    WHERE live.state = 'ready' AND live.pool_id = %(pool)s AND live.tenant_id = queue.tenant_id
      AND (live.rank, live.id) > (queue.rank, queue.run_id)
    ORDER BY live.rank, live.id LIMIT queue.count
    FOR UPDATE SKIP LOCKED
) best
JOIN beatkeeper_job job ON job.id = best.job_id
LEFT JOIN beatkeeper_job_gate gate ON gate.job_id = best.job_id
ORDER BY best.rank, best.id;

-- name: lock_gates
-- Before counting: a release that commits between the count and the mark would make one run too many. SKIP LOCKED:
-- dispatch never waits for a report; the runs of its job wait for the next pass.
SELECT job_id, max_running FROM beatkeeper_job_gate
WHERE job_id = ANY (%(jobs)s::uuid[]) AND max_running IS NOT NULL ORDER BY job_id FOR UPDATE SKIP LOCKED;

-- name: occupied_gates
-- Counted after the gate was locked, so no earlier release or mark is missed.
SELECT job.id, count(*)::int
FROM unnest(%(jobs)s::uuid[]) AS job (id)
CROSS JOIN unnest(ARRAY['queued', 'running', 'waiting_callback']) AS state (value)
CROSS JOIN LATERAL (
    -- A probe for each, or the planner, who expects few runs of a job, walks through all that are blocked.
    SELECT FROM beatkeeper_live_run live WHERE live.job_id = job.id AND live.state = state.value OFFSET 0
) taken
GROUP BY job.id;

-- name: mark_queued
-- ready -> queued, committed before any wake-up is published. The rows are locked, so they lie where they lay. If the
-- clock was set back, `queued_at` is never before the instant at which claims begin to read.
UPDATE beatkeeper_live_run live
SET state = 'queued', reason = '', queued_at = greatest(clock_timestamp(), %(since)s::timestamptz)
WHERE live.ctid = ANY (%(ctids)s::tid[]) AND live.state = 'ready';

-- name: keep_queued_since
-- No run that is queued in the pool was queued before this instant. Never waits for whoever edits the pool.
UPDATE beatkeeper_pool pool SET queued_since = %(since)s
FROM (SELECT id FROM beatkeeper_pool WHERE id = %(pool)s FOR NO KEY UPDATE SKIP LOCKED) free
WHERE pool.id = free.id;

-- name: mark_blocked
-- ready -> blocked, for the run's own reason. The rows are locked.
UPDATE beatkeeper_live_run live SET state = 'blocked', reason = new.reason
FROM unnest(%(ctids)s::tid[], %(reasons)s::text[]) AS new (at, reason)
WHERE live.ctid = new.at AND live.state = 'ready';

-- name: recall
-- queued -> ready, of queues that have too much queued the least urgent; what is being claimed goes. No wake-up is
-- recalled: it finds nothing. How many of each, how many of these count for this day, and the first of their ranks.
WITH locked AS MATERIALIZED (
    SELECT last.* FROM unnest(%(tenants)s::int[], %(counts)s::int[]) AS queue (tenant_id, count)
    CROSS JOIN LATERAL (
        SELECT live.id, live.tenant_id, live.queued_at, live.rank FROM beatkeeper_live_run live
        WHERE {{still_queued(live, %(pool)s, %(since)s::timestamptz)}} AND live.tenant_id = queue.tenant_id
        ORDER BY live.rank DESC, live.queued_at DESC LIMIT queue.count
        -- A run that is being claimed goes.
        FOR UPDATE SKIP LOCKED
    ) last
    LIMIT %(most)s
), moved AS (
    UPDATE beatkeeper_live_run live SET state = 'ready', queued_at = NULL FROM locked WHERE live.id = locked.id
    RETURNING locked.tenant_id, locked.queued_at, locked.rank
)
SELECT tenant_id, count(*)::int, count(*) FILTER (WHERE queued_at >= %(midnight)s)::int, min(rank)
FROM moved GROUP BY tenant_id;
