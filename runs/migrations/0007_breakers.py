"""Breakers of jobs, tenants' budgets of retries, and the order of the retries that wait for one."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

from runs.states import live_moves_sql

# A retry beyond its tenant's budget goes from its wait to another.
MOVES = f"""
CREATE OR REPLACE TRIGGER live_run_moves BEFORE UPDATE OF state ON beatkeeper_live_run FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND (OLD.state::text, NEW.state::text) NOT IN ({live_moves_sql()}))
    EXECUTE FUNCTION beatkeeper_refuse('this move is not in the table of legal moves');
"""


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_jobs', '0007_retries'),
        ('beatkeeper_runs', '0006_callbacks'),
    ]

    operations = [
        migrations.CreateModel(
            name='RetryBudget',
            fields=[
                ('tenant', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='+', serialize=False, to='beatkeeper_jobs.tenant')),
                ('tokens', models.FloatField()),
                ('tokens_at', models.DateTimeField()),
            ],
            options={
                'db_table': 'beatkeeper_retry_budget',
            },
        ),
        migrations.CreateModel(
            name='Breaker',
            fields=[
                ('job', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='breaker', serialize=False, to='beatkeeper_jobs.job')),
                ('limit', models.PositiveIntegerField()),
                ('cooldown_ms', models.BigIntegerField()),
                ('state', models.CharField(choices=[('closed', 'Closed'), ('open', 'Open'), ('half_open', 'Half Open')], db_default='closed', max_length=9)),
                ('failures', models.PositiveIntegerField(db_default=0)),
                ('opened_at', models.DateTimeField(null=True)),
                ('probe_at', models.DateTimeField(null=True)),
                ('probe', models.UUIDField(null=True)),
                ('changed_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'beatkeeper_breaker',
                'constraints': [models.CheckConstraint(condition=models.Q(('state__in', ['closed', 'open', 'half_open'])), name='breaker_state_known'), models.CheckConstraint(condition=models.Q(models.Q(('state', 'open'), _negated=True), models.Q(('opened_at__isnull', False), ('probe_at__isnull', False)), _connector='OR'), name='breaker_open_has_end'), models.CheckConstraint(condition=models.Q(models.Q(('state', 'half_open'), _negated=True), ('probe__isnull', False), _connector='OR'), name='breaker_half_open_has_probe')],
            },
        ),
        migrations.AddField(
            model_name='liverun',
            name='paced',
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.AddIndex(
            model_name='liverun',
            index=models.Index(condition=models.Q(('paced__isnull', False)), fields=['paced', 'rank'], name='live_run_budget_idx'),
        ),
        migrations.RunSQL(MOVES, migrations.RunSQL.noop),
    ]
