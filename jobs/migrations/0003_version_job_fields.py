from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_jobs", "0002_guards")]
    operations = [
        migrations.AddField(
            model_name="jobversion",
            name="job_fields",
            field=models.JSONField(blank=True, null=True),
        )
    ]
