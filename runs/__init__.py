"""What happens and what happened: the life of a run, in the order of the files that move it on.

    schedule     beat -> loops (made of holding) -> passes, on the locks of slices, at the pace of pace;
                 presence tells of it
    trigger      trigger: due_jobs are read, visits decides (with stops, overlap, gaps), births writes the rows
    make up      gaps -> spans; catch_up works them off by catch_up_pace; ended_stops settles what a stop held back
    dispatch     dispatch: pool_workers, lanes, shares and limits say how many, choosing says which; these are marked
                 `queued`
    hand over    publish -> broker_session -> permits, to the queues of brokers; broker_users may read them
    claim, report, heartbeat    in the worker: scheduler_project/sdk (ledger.sql), targets/;
                 remote_ledger serves it over HTTPS, ledger_here in this process; callbacks bring an outcome later
    repair       rescue, sweep, retry_budgets; upkeep and day_partitions once a day
    ask, change  services -> requests, run_requests of code; listeners and held_back act inside a change of a job, and
                 known_targets answers there; breakers
    what died    dead_letters, redrives
    tell         explain, reasons, run_logs, run_lists and run_page, api/, the files of the admin
    of others    celery_beat/ serves the rows of django-celery-beat; demo makes the demo tenant with demo_tasks

Every write of a state is in transitions or in the worker's ledger, every legal move in states, every hot statement in
sql/, run by queries. docs/architecture.md has the states, who moves what, and a claim in ten lines.
"""
