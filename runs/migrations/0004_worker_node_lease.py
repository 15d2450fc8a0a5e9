from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_runs", "0003_not_succeeded_idx")]
    operations = [
        migrations.AddField("workernode", "lease_seconds", models.FloatField(db_default=30.0)),
    ]
