"""The dead-letter desk: a letter for each dead run, also of those before, and groups on their way again."""

import uuid

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

# Whoever ends a run as dead, of this version or the one before, leaves a letter with it, in the same statement.
LETTERS = """
CREATE FUNCTION beatkeeper_leave_letter() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO beatkeeper_dead_letter
        (run_id, tenant_id, job_id, fingerprint, error_class, error_type, error_line, died_at)
    VALUES (NEW.id, NEW.tenant_id, NEW.job_id, coalesce(nullif(NEW.fingerprint, ''), NEW.error_class, ''),
            NEW.error_class, NEW.error_type, NEW.error_line, NEW.finished_at)
    ON CONFLICT (run_id) DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER run_leaves_letter AFTER UPDATE OF state ON beatkeeper_run FOR EACH ROW
    WHEN (NEW.state = 'dead') EXECUTE FUNCTION beatkeeper_leave_letter();
CREATE TRIGGER dead_letter_decided_once BEFORE UPDATE OF decision ON beatkeeper_dead_letter FOR EACH ROW
    WHEN (OLD.decision <> '' AND NEW.decision <> OLD.decision)
    EXECUTE FUNCTION beatkeeper_refuse('what was decided of a dead run stays');
INSERT INTO beatkeeper_dead_letter
    (run_id, tenant_id, job_id, fingerprint, error_class, error_type, error_line, died_at)
SELECT id, tenant_id, job_id, coalesce(nullif(fingerprint, ''), error_class, ''), error_class, error_type, error_line,
       finished_at
FROM beatkeeper_run WHERE state = 'dead';
"""
UNDO = """
DROP TRIGGER run_leaves_letter ON beatkeeper_run;
DROP TRIGGER dead_letter_decided_once ON beatkeeper_dead_letter;
DROP FUNCTION beatkeeper_leave_letter();
"""
TRIGGERS = [('schedule', 'Schedule'), ('catch_up', 'Catch Up'), ('manual', 'Manual'), ('retry', 'Retry'), ('redrive', 'Redrive')]


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_jobs', '0007_retries'),
        ('beatkeeper_runs', '0007_breakers'),
    ]

    operations = [
        migrations.AlterField(
            model_name='liverun',
            name='trigger',
            field=models.CharField(choices=TRIGGERS, max_length=8),
        ),
        migrations.AlterField(
            model_name='run',
            name='trigger',
            field=models.CharField(choices=TRIGGERS, max_length=8),
        ),
        migrations.CreateModel(
            name='Redrive',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('fingerprint', models.CharField(max_length=32)),
                ('per_minute', models.PositiveIntegerField()),
                ('input', models.JSONField(null=True)),
                ('reason', models.TextField(blank=True, db_default='')),
                ('requested_by', models.CharField(blank=True, db_default='', max_length=200)),
                ('state', models.CharField(choices=[('working', 'Working'), ('done', 'Done'), ('stopped', 'Stopped')], db_default='working', max_length=7)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('next_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('cursor_at', models.DateTimeField(null=True)),
                ('cursor', models.UUIDField(null=True)),
                ('made', models.PositiveIntegerField(db_default=0)),
                ('refused', models.PositiveIntegerField(db_default=0)),
                ('last_refusal', models.TextField(blank=True, db_default='')),
                ('ended_at', models.DateTimeField(null=True)),
                ('ended_by', models.CharField(blank=True, db_default='', max_length=200)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='beatkeeper_jobs.tenant')),
            ],
            options={
                'db_table': 'beatkeeper_redrive',
                'indexes': [models.Index(condition=models.Q(('state', 'working')), fields=['next_at'], name='redrive_working_idx'), models.Index(fields=['tenant', '-created_at'], name='redrive_of_tenant_idx')],
                'constraints': [models.CheckConstraint(condition=models.Q(('state__in', ['working', 'done', 'stopped'])), name='redrive_state_known'), models.CheckConstraint(condition=models.Q(('per_minute__gte', 1), ('per_minute__lte', 6000)), name='redrive_pace_1_to_6000'), models.UniqueConstraint(condition=models.Q(('state', 'working')), fields=('tenant', 'fingerprint'), name='redrive_once_per_group')],
            },
        ),
        migrations.CreateModel(
            name='DeadLetter',
            fields=[
                ('run', models.OneToOneField(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, primary_key=True, related_name='dead_letter', serialize=False, to='beatkeeper_runs.run')),
                ('fingerprint', models.CharField(max_length=32)),
                ('error_class', models.CharField(blank=True, choices=[('transient', 'Transient'), ('permanent', 'Permanent'), ('user', 'User'), ('timeout', 'Timeout'), ('worker_lost', 'Worker Lost'), ('cancelled', 'Cancelled')], db_default='', max_length=12)),
                ('error_type', models.CharField(blank=True, db_default='', max_length=200)),
                ('error_line', models.TextField(blank=True, db_default='')),
                ('died_at', models.DateTimeField()),
                ('decision', models.CharField(blank=True, choices=[('', 'open'), ('redriven', 'Redriven'), ('dismissed', 'Dismissed')], db_default='', max_length=9)),
                ('decided_at', models.DateTimeField(null=True)),
                ('decided_by', models.CharField(blank=True, db_default='', max_length=200)),
                ('note', models.TextField(blank=True, db_default='')),
                ('redriven_as', models.UUIDField(null=True)),
                ('job', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, to='beatkeeper_jobs.job')),
                ('tenant', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, to='beatkeeper_jobs.tenant')),
                ('redrive', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='letters', to='beatkeeper_runs.redrive')),
            ],
            options={
                'db_table': 'beatkeeper_dead_letter',
                'indexes': [models.Index(condition=models.Q(('decision', '')), fields=['tenant', 'fingerprint', 'died_at', 'run'], name='dead_letter_open_idx'), models.Index(condition=models.Q(('decision', '')), fields=['job', 'died_at', 'run'], name='dead_letter_of_job_idx'), models.Index(condition=models.Q(('decision', ''), _negated=True), fields=['tenant', 'fingerprint', 'died_at', 'run'], name='dead_letter_decided_idx'), models.Index(condition=models.Q(('decision', ''), _negated=True), fields=['decided_at'], name='dead_letter_old_idx')],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('decided_at__isnull', True), ('decision', '')), models.Q(('decided_at__isnull', False), ('decision', 'redriven'), ('redriven_as__isnull', False)), models.Q(('decided_at__isnull', False), ('decision', 'dismissed'), ('redriven_as__isnull', True)), _connector='OR'), name='dead_letter_decision_whole')],
            },
        ),
        migrations.RunSQL(LETTERS, UNDO),
    ]
