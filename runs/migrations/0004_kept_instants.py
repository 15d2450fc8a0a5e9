from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_runs', '0003_queue_counts'),
    ]

    operations = [
        migrations.AddField(
            model_name='run',
            name='queued_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='run',
            name='cancel_requested_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='run',
            name='cancel_acknowledged_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='run',
            name='requested_reason',
            field=models.TextField(blank=True, db_default=''),
        ),
    ]
