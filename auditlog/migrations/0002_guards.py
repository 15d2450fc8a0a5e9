"""Refuse changes to entries. The transaction id orders entries by commit for sealing."""

from django.db import migrations

GUARDS = """
ALTER TABLE beatkeeper_audit_entry ADD COLUMN transaction xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE FUNCTION beatkeeper_audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit entries are only ever added' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON beatkeeper_audit_entry FOR EACH ROW
    EXECUTE FUNCTION beatkeeper_audit_append_only();
CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON beatkeeper_audit_entry
    EXECUTE FUNCTION beatkeeper_audit_append_only();
"""
UNDO = """
DROP TRIGGER audit_append_only ON beatkeeper_audit_entry;
DROP TRIGGER audit_no_truncate ON beatkeeper_audit_entry;
DROP FUNCTION beatkeeper_audit_append_only();
ALTER TABLE beatkeeper_audit_entry DROP COLUMN transaction;
"""


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_auditlog", "0001_initial")]
    operations = [migrations.RunSQL(GUARDS, UNDO)]
