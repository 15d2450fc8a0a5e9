"""Refuse illegal moves, a second outcome and a lowered fencing token in the database itself."""

from datetime import datetime, timezone
from typing import Any

from django.conf import settings
from django.db import migrations

from runs.scheduler import day_partitions
from runs.states import final_moves_sql, live_moves_sql

GUARDS = f"""
ALTER TABLE beatkeeper_run ADD CONSTRAINT run_final_moves CHECK ({final_moves_sql()});
ALTER TABLE beatkeeper_run ADD CONSTRAINT run_final_state_has_instant CHECK ((state IS NULL) = (finished_at IS NULL));

CREATE FUNCTION beatkeeper_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%: %', TG_TABLE_NAME, TG_ARGV[0] USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER live_run_moves BEFORE UPDATE OF state ON beatkeeper_live_run FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND (OLD.state::text, NEW.state::text) NOT IN ({live_moves_sql()}))
    EXECUTE FUNCTION beatkeeper_refuse('this move is not in the table of legal moves');
CREATE TRIGGER live_run_created BEFORE INSERT ON beatkeeper_live_run FOR EACH ROW
    WHEN (NEW.state NOT IN ('ready', 'delayed', 'blocked'))
    EXECUTE FUNCTION beatkeeper_refuse('a run begins as ready, delayed or blocked');
CREATE TRIGGER live_run_token BEFORE UPDATE OF claim_seq ON beatkeeper_live_run FOR EACH ROW
    WHEN (NEW.claim_seq < OLD.claim_seq)
    EXECUTE FUNCTION beatkeeper_refuse('claim_seq is never lowered');
CREATE TRIGGER run_final_is_final BEFORE UPDATE ON beatkeeper_run FOR EACH ROW
    WHEN (OLD.state IS NOT NULL)
    EXECUTE FUNCTION beatkeeper_refuse('a finished run never changes');
CREATE UNIQUE INDEX live_run_claim_token_once ON beatkeeper_live_run (claim_token) WHERE claim_token IS NOT NULL;

CREATE FUNCTION beatkeeper_record_dead_letter() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO beatkeeper_dead_letter
        (run_id, tenant_id, job_id, fingerprint, error_class, error_type, error_line, died_at)
    VALUES (NEW.id, NEW.tenant_id, NEW.job_id, coalesce(nullif(NEW.fingerprint, ''), NEW.error_class, ''),
            NEW.error_class, NEW.error_type, NEW.error_line, NEW.finished_at)
    ON CONFLICT (run_id) DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER run_records_dead_letter AFTER UPDATE OF state ON beatkeeper_run FOR EACH ROW
    WHEN (NEW.state = 'dead') EXECUTE FUNCTION beatkeeper_record_dead_letter();
CREATE TRIGGER dead_letter_decided_once BEFORE UPDATE OF decision ON beatkeeper_dead_letter FOR EACH ROW
    WHEN (OLD.decision <> '' AND NEW.decision <> OLD.decision)
    EXECUTE FUNCTION beatkeeper_refuse('what was decided of a dead run stays');

ALTER TABLE beatkeeper_live_run SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0);
ALTER TABLE beatkeeper_job_clock SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE beatkeeper_worker_node SET (fillfactor = 50);
"""
# With the functions go their triggers.
UNDO = """
DROP FUNCTION beatkeeper_record_dead_letter() CASCADE;
DROP FUNCTION beatkeeper_refuse() CASCADE;
DROP INDEX live_run_claim_token_once;
ALTER TABLE beatkeeper_run DROP CONSTRAINT run_final_moves, DROP CONSTRAINT run_final_state_has_instant;
"""


def make_partitions(apps: Any, schema_editor: Any) -> None:
    with schema_editor.connection.cursor() as cursor:
        today = datetime.now(timezone.utc).date()
        day_partitions.ensure(cursor, today, settings.HOT_PERIOD_DAYS, settings.PARTITIONS_AHEAD_DAYS)


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_runs", "0001_initial")]
    operations = [
        migrations.RunSQL(GUARDS, UNDO),
        migrations.RunPython(make_partitions, migrations.RunPython.noop),
    ]
