"""Runs whose outcome is told later, by a token; until then the live run keeps its log's pointer."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_runs', '0005_scheduler'),
    ]

    operations = [
        migrations.AddField(
            model_name='liverun',
            name='callback_digest',
            field=models.CharField(max_length=64, null=True),
        ),
        migrations.AddField(
            model_name='liverun',
            name='log_object',
            field=models.TextField(null=True),
        ),
        migrations.AddField(
            model_name='liverun',
            name='log_offset',
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name='liverun',
            name='log_length',
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddConstraint(
            model_name='liverun',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('state', 'waiting_callback'), _negated=True), models.Q(('callback_digest__isnull', False), ('wake_at__isnull', False), ('worker__isnull', False)), _connector='OR'), name='live_run_waiting_has_deadline'),
        ),
        migrations.AddField(
            model_name='attempt',
            name='callback_digest',
            field=models.CharField(max_length=64, null=True),
        ),
        migrations.AddField(
            model_name='attempt',
            name='callback_content',
            field=models.CharField(max_length=64, null=True),
        ),
    ]
