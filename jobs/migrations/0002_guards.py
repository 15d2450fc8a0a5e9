"""Refuse changes to a version of a job: it is what its runs executed."""

from django.db import migrations

GUARDS = """
CREATE FUNCTION beatkeeper_refuse_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a version of a job never changes: write a new one' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER job_version_immutable BEFORE UPDATE ON beatkeeper_job_version FOR EACH ROW
    EXECUTE FUNCTION beatkeeper_refuse_version();
"""
UNDO = "DROP TRIGGER job_version_immutable ON beatkeeper_job_version; DROP FUNCTION beatkeeper_refuse_version();"


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_jobs", "0001_initial")]
    operations = [migrations.RunSQL(GUARDS, UNDO)]
