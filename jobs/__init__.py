"""What should run, when and how, and who may say so. Nothing here knows of runs.

change a job     services, each change a transaction on a locked_job; idempotency does a repeated request once;
                 signals lets `runs` take part
a job as written specs, with targets (http_target, command_target, known_targets, secret_references), schedules/,
                 catch_up_spec, retry_spec; worker_reach is what a worker's key may write; declarations come from code
spell            durations, instants, input_checks; refusals say what is wrong
plan             planned_times, planned_changes, working_times of calendars, rearming after an edit of one; forecast;
                 used_by says which jobs a calendar or a secret has
hold             stops by stop_rules; missed times, resuming of paused jobs
who              tenants with keys and roles, platform for operators, tenant_secrets
tell             api/, the files of the admin (staff says who sees what in it, display how, uncounted_pages how much)
start            checks of settings; database_clock is the only clock
"""
