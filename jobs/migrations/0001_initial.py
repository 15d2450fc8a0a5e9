import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Tenant',
            fields=[
                ('id', models.AutoField(primary_key=True, serialize=False)),
                ('slug', models.CharField(max_length=40, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$', 'Use small letters, digits and inner hyphens, at most 40.')])),
                ('name', models.CharField(max_length=100)),
                ('weight', models.PositiveSmallIntegerField(default=1, help_text="Share of a pool's slots, 1 to 100.")),
                ('max_running', models.PositiveIntegerField(blank=True, help_text='Runs queued or running at once, per pool.', null=True)),
                ('rate_limit', models.FloatField(blank=True, help_text='Runs handed over per second, per pool.', null=True)),
                ('daily_quota', models.PositiveIntegerField(blank=True, help_text='Runs handed over per day (UTC), per pool.', null=True)),
                ('retry_budget', models.PositiveIntegerField(blank=True, help_text='Retries let go per minute, over all pools; empty: as many as fall due.', null=True)),
                ('allowed_hosts', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=260), blank=True, default=list, help_text="Hosts (or host:port) on private networks that this tenant's HTTP targets may call.", size=None)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
            ],
            options={
                'db_table': 'beatkeeper_tenant',
                'constraints': [models.CheckConstraint(condition=models.Q(('weight__gte', 1), ('weight__lte', 100)), name='tenant_weight_1_to_100'), models.CheckConstraint(condition=models.Q(('rate_limit__gt', 0)), name='tenant_rate_limit_positive'), models.CheckConstraint(condition=models.Q(('retry_budget__gt', 0)), name='tenant_retry_budget_positive')],
            },
        ),
        migrations.CreateModel(
            name='Pool',
            fields=[
                ('id', models.AutoField(primary_key=True, serialize=False)),
                ('slug', models.CharField(max_length=40, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$', 'Use small letters, digits and inner hyphens, at most 40.')])),
                ('description', models.CharField(blank=True, max_length=200)),
                ('exported_tasks', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), blank=True, default=list, size=None)),
                ('exported_kinds', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=20), blank=True, default=list, size=None)),
                ('shared', models.BooleanField(default=False, help_text='Open to every tenant.')),
                ('broker', models.CharField(blank=True, db_default='', help_text="Name of a broker of BEATKEEPER_BROKERS; empty: the platform's own.", max_length=40)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('tenants', models.ManyToManyField(blank=True, db_table='beatkeeper_pool_tenant', related_name='pools', to='beatkeeper_jobs.tenant')),
            ],
            options={
                'db_table': 'beatkeeper_pool',
            },
        ),
        migrations.CreateModel(
            name='Job',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=120)),
                ('description', models.TextField(blank=True)),
                ('status', models.CharField(choices=[('active', 'Active'), ('paused', 'Paused'), ('finished', 'Finished'), ('cancelled', 'Cancelled'), ('unrunnable', 'Unrunnable')], default='active', max_length=10)),
                ('status_note', models.TextField(blank=True)),
                ('status_by', models.CharField(blank=True, max_length=200)),
                ('status_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('paused_until', models.DateTimeField(blank=True, null=True)),
                ('priority', models.PositiveSmallIntegerField(default=500)),
                ('tags', models.JSONField(blank=True, default=dict)),
                ('version', models.PositiveIntegerField(default=1)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('deleted_at', models.DateTimeField(blank=True, null=True)),
                ('pool', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='beatkeeper_jobs.pool')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='beatkeeper_jobs.tenant')),
            ],
            options={
                'db_table': 'beatkeeper_job',
                'indexes': [models.Index(models.F('tenant'), models.OrderBy(models.F('created_at'), descending=True), models.OrderBy(models.F('id'), descending=True), condition=models.Q(('deleted_at', None)), name='job_newest_first_idx'), django.contrib.postgres.indexes.GinIndex(fields=['tags'], name='job_tags_idx', opclasses=['jsonb_path_ops']), models.Index(condition=models.Q(('paused_until__isnull', False)), fields=['paused_until'], name='job_paused_until_idx')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('deleted_at', None)), fields=('tenant', 'name'), name='job_name_once_per_tenant'), models.CheckConstraint(condition=models.Q(('priority__lte', 1000)), name='job_priority_0_to_1000'), models.CheckConstraint(condition=models.Q(('status__in', ['active', 'paused', 'finished', 'cancelled', 'unrunnable'])), name='job_status_known')],
            },
        ),
        migrations.CreateModel(
            name='ImportedTask',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('source', models.CharField(max_length=200)),
                ('task_id', models.BigIntegerField()),
                ('name', models.CharField(max_length=200)),
                ('imported_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('switched_off_at', models.DateTimeField(null=True)),
                ('undone_at', models.DateTimeField(null=True)),
                ('untriggered_at', models.DateTimeField(null=True)),
                ('job', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='imported_task', to='beatkeeper_jobs.job')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='beatkeeper_jobs.tenant')),
            ],
            options={
                'db_table': 'beatkeeper_imported_task',
                'constraints': [models.UniqueConstraint(fields=('source', 'task_id', 'tenant'), name='imported_task_once_per_row')],
            },
        ),
        migrations.CreateModel(
            name='IdempotentRequest',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=64)),
                ('fingerprint', models.CharField(max_length=64)),
                ('status', models.PositiveSmallIntegerField(default=0)),
                ('answer', models.JSONField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='beatkeeper_jobs.tenant')),
            ],
            options={
                'db_table': 'beatkeeper_idempotent_request',
                'indexes': [models.Index(fields=['created_at'], name='idempotent_request_age_idx')],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'key'), name='idempotent_request_once')],
            },
        ),
        migrations.CreateModel(
            name='Declaration',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=120)),
                ('spec', models.JSONField()),
                ('source', models.CharField(blank=True, db_default='', max_length=200)),
                ('declared_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('applied_at', models.DateTimeField(blank=True, null=True)),
                ('withdrawn_at', models.DateTimeField(blank=True, null=True)),
                ('error', models.TextField(blank=True)),
                ('of_key', models.BooleanField(db_default=False)),
                ('applied', models.JSONField(blank=True, null=True)),
                ('job', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='declarations', to='beatkeeper_jobs.job')),
                ('pool', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='beatkeeper_jobs.pool')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='beatkeeper_jobs.tenant')),
            ],
            options={
                'db_table': 'beatkeeper_declaration',
                'indexes': [models.Index(condition=models.Q(('applied_at', None)), fields=['declared_at'], name='declaration_waiting_idx')],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'name'), name='declaration_once_per_name')],
            },
        ),
        migrations.CreateModel(
            name='Calendar',
            fields=[
                ('id', models.AutoField(primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=40, validators=[django.core.validators.RegexValidator('^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$', 'Use small letters, digits and inner hyphens, at most 40.')])),
                ('description', models.CharField(blank=True, max_length=200)),
                ('timezone', models.CharField(default='UTC', max_length=60)),
                ('dates', models.JSONField(blank=True, default=list)),
                ('weekly', models.JSONField(blank=True, default=dict)),
                ('edition', models.PositiveIntegerField(default=1)),
                ('rearmed_to', models.UUIDField(blank=True, editable=False, null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('deleted_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='calendars', to='beatkeeper_jobs.tenant')),
            ],
            options={
                'db_table': 'beatkeeper_calendar',
                'indexes': [models.Index(condition=models.Q(('rearmed_to__isnull', False)), fields=['updated_at'], name='calendar_rearming_idx')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('deleted_at', None)), fields=('tenant', 'name'), name='calendar_name_once_per_tenant')],
            },
        ),
        migrations.CreateModel(
            name='ApiKey',
            fields=[
                ('id', models.AutoField(primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=100)),
                ('prefix', models.CharField(editable=False, max_length=16, unique=True)),
                ('digest', models.CharField(editable=False, max_length=64)),
                ('role', models.CharField(choices=[('viewer', 'Viewer'), ('operator', 'Operator'), ('admin', 'Admin'), ('worker', 'Worker')], default='admin', max_length=8)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
                ('last_used_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('pool', models.ForeignKey(blank=True, help_text="For a worker's key: the one pool whose runs it may take.", null=True, on_delete=django.db.models.deletion.CASCADE, related_name='keys', to='beatkeeper_jobs.pool')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='keys', to='beatkeeper_jobs.tenant')),
            ],
            options={
                'db_table': 'beatkeeper_api_key',
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('pool__isnull', False), ('role', 'worker')), models.Q(models.Q(('role', 'worker'), _negated=True), ('pool__isnull', True)), _connector='OR'), name='api_key_of_worker_has_pool')],
            },
        ),
        migrations.CreateModel(
            name='JobClock',
            fields=[
                ('job', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='clock', serialize=False, to='beatkeeper_jobs.job')),
                ('slice', models.PositiveSmallIntegerField()),
                ('next_run_at', models.DateTimeField(null=True)),
                ('priority', models.PositiveSmallIntegerField(db_default=500, default=500)),
            ],
            options={
                'db_table': 'beatkeeper_job_clock',
                'indexes': [models.Index(condition=models.Q(('next_run_at__isnull', False)), fields=['slice', 'next_run_at', '-priority'], name='job_clock_due_idx')],
                'constraints': [models.CheckConstraint(condition=models.Q(('slice__lt', 64)), name='job_clock_slice_known')],
            },
        ),
        migrations.CreateModel(
            name='JobVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.PositiveIntegerField()),
                ('target', models.JSONField()),
                ('target_key', models.CharField(max_length=200)),
                ('schedule', models.JSONField(null=True)),
                ('timeout_ms', models.BigIntegerField()),
                ('overlap', models.CharField(choices=[('skip', 'Skip'), ('buffer_one', 'Buffer One'), ('buffer_all', 'Buffer All'), ('cancel_other', 'Cancel Other'), ('terminate_other', 'Terminate Other'), ('allow_all', 'Allow All')], default='skip', max_length=16)),
                ('catch_up', models.JSONField()),
                ('retry', models.JSONField()),
                ('breaker', models.JSONField(null=True)),
                ('max_concurrency', models.PositiveIntegerField(null=True)),
                ('secret_names', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), db_default=[], default=list, size=None)),
                ('anchor_at', models.DateTimeField()),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('created_by', models.CharField(blank=True, max_length=200)),
                ('calendar', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='versions', to='beatkeeper_jobs.calendar')),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='versions', to='beatkeeper_jobs.job')),
            ],
            options={
                'db_table': 'beatkeeper_job_version',
                'indexes': [models.Index(condition=models.Q(('calendar__isnull', False)), fields=['calendar', 'job'], name='job_version_calendar_idx'), django.contrib.postgres.indexes.GinIndex(condition=models.Q(('secret_names', []), _negated=True), fields=['secret_names'], name='job_version_secret_names_idx')],
                'constraints': [models.UniqueConstraint(fields=('job', 'version'), name='job_version_once'), models.CheckConstraint(condition=models.Q(('overlap__in', ['skip', 'buffer_one', 'buffer_all', 'cancel_other', 'terminate_other', 'allow_all'])), name='job_version_overlap_known'), models.CheckConstraint(condition=models.Q(('timeout_ms__gte', 1000), ('timeout_ms__lte', 2592000000)), name='job_version_timeout_1s_to_30d')],
            },
        ),
        migrations.CreateModel(
            name='Override',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('planned_at', models.DateTimeField()),
                ('moved_to', models.DateTimeField(null=True)),
                ('note', models.TextField(blank=True)),
                ('created_by', models.CharField(blank=True, max_length=200)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('done_at', models.DateTimeField(null=True)),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='overrides', to='beatkeeper_jobs.job')),
            ],
            options={
                'db_table': 'beatkeeper_override',
                'constraints': [models.UniqueConstraint(fields=('job', 'planned_at'), name='override_once')],
            },
        ),
        migrations.CreateModel(
            name='Suspension',
            fields=[
                ('id', models.AutoField(primary_key=True, serialize=False)),
                ('kind', models.CharField(choices=[('pause', 'Pause'), ('blackout', 'Blackout')], max_length=8)),
                ('tag_name', models.CharField(blank=True, max_length=60)),
                ('tag_value', models.CharField(blank=True, max_length=200)),
                ('effect', models.CharField(choices=[('catch_up', 'Catch Up'), ('hold', 'Hold'), ('skip', 'Skip'), ('run_after', 'Run After')], max_length=9)),
                ('note', models.TextField(blank=True)),
                ('begins_at', models.DateTimeField()),
                ('ends_at', models.DateTimeField(blank=True, null=True)),
                ('lifted_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('lifted_by', models.CharField(blank=True, editable=False, max_length=200)),
                ('settled_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('created_by', models.CharField(blank=True, editable=False, max_length=200)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('pool', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='suspensions', to='beatkeeper_jobs.pool')),
                ('tenant', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='suspensions', to='beatkeeper_jobs.tenant')),
            ],
            options={
                'verbose_name': 'pause or blackout',
                'verbose_name_plural': 'pauses and blackouts',
                'db_table': 'beatkeeper_suspension',
                'indexes': [models.Index(condition=models.Q(('settled_at', None)), fields=['begins_at'], name='suspension_unsettled_idx')],
                'constraints': [models.CheckConstraint(condition=models.Q(('kind__in', ['pause', 'blackout'])), name='suspension_kind_known'), models.CheckConstraint(condition=models.Q(('effect__in', ['catch_up', 'hold', 'skip', 'run_after'])), name='suspension_effect_known'), models.CheckConstraint(condition=models.Q(('ends_at', None), ('ends_at__gt', models.F('begins_at')), _connector='OR'), name='suspension_not_empty'), models.CheckConstraint(condition=models.Q(models.Q(('kind', 'blackout'), _negated=True), ('ends_at__isnull', False), _connector='OR'), name='suspension_blackout_ends')],
            },
        ),
        migrations.CreateModel(
            name='Secret',
            fields=[
                ('id', models.AutoField(primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=64)),
                ('ciphertext', models.TextField(editable=False)),
                ('key_id', models.CharField(editable=False, max_length=12)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('created_by', models.CharField(blank=True, editable=False, max_length=200)),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('updated_by', models.CharField(blank=True, editable=False, max_length=200)),
                ('last_used_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='secrets', to='beatkeeper_jobs.tenant')),
            ],
            options={
                'db_table': 'beatkeeper_secret',
                'indexes': [models.Index(fields=['tenant', '-created_at', '-id'], name='secret_newest_first_idx'), models.Index(fields=['key_id'], name='secret_key_idx')],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'name'), name='secret_name_once_per_tenant')],
            },
        ),
        migrations.CreateModel(
            name='RunRequest',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('key', models.CharField(max_length=200)),
                ('spec', models.JSONField()),
                ('at', models.DateTimeField(blank=True, null=True)),
                ('requested_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('cancel_requested_at', models.DateTimeField(blank=True, null=True)),
                ('applied_at', models.DateTimeField(blank=True, null=True)),
                ('error', models.TextField(blank=True, db_default='')),
                ('run', models.UUIDField(blank=True, null=True)),
                ('job', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='beatkeeper_jobs.job')),
                ('pool', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='beatkeeper_jobs.pool')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='beatkeeper_jobs.tenant')),
            ],
            options={
                'db_table': 'beatkeeper_run_request',
                'indexes': [models.Index(condition=models.Q(('applied_at', None)), fields=['requested_at'], name='run_request_waiting_idx'), models.Index(fields=['requested_at'], name='run_request_age_idx')],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'key'), name='run_request_once_per_key')],
            },
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.AutoField(primary_key=True, serialize=False)),
                ('role', models.CharField(choices=[('viewer', 'Viewer'), ('operator', 'Operator'), ('admin', 'Admin')], default='viewer', max_length=8)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='beatkeeper_jobs.tenant')),
            ],
            options={
                'db_table': 'beatkeeper_membership',
                'constraints': [models.UniqueConstraint(fields=('user', 'tenant'), name='membership_once_per_tenant')],
            },
        ),
    ]
