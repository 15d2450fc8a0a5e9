"""Call the reason of a suspension, an override and a status by one word."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_jobs", "0004_public_ids")]
    operations = [
        migrations.RenameField("suspension", "note", "reason"),
        migrations.RenameField("override", "note", "reason"),
        migrations.RenameField("job", "status_note", "status_reason"),
    ]
