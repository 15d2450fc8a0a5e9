"""Let a pause or blackout name one job, which is shown to its tenant alone."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

JOB = models.ForeignKey(
    "beatkeeper_jobs.job",
    django.db.models.deletion.CASCADE,
    null=True,
    blank=True,
    related_name="suspensions",
)


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_jobs", "0006_schedule_words")]
    operations = [
        migrations.AddField("suspension", "job", JOB),
        migrations.AddConstraint(
            "suspension",
            models.CheckConstraint(
                condition=Q(("job", None), ("tenant__isnull", False), _connector=Q.OR),
                name="suspension_of_job_has_tenant",
            ),
        ),
    ]
