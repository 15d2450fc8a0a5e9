"""A breaker per version of a job, and a tenant's budget of retries."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_jobs', '0006_secrets'),
    ]

    operations = [
        migrations.AddField(
            model_name='jobversion',
            name='breaker',
            field=models.JSONField(null=True),
        ),
        migrations.AddField(
            model_name='tenant',
            name='retry_budget',
            field=models.PositiveIntegerField(blank=True, help_text='Retries let go per minute, over all pools; empty: as many as fall due.', null=True),
        ),
        migrations.AddConstraint(
            model_name='tenant',
            constraint=models.CheckConstraint(condition=models.Q(('retry_budget__gt', 0)), name='tenant_retry_budget_positive'),
        ),
    ]
