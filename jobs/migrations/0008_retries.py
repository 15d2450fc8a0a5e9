from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_jobs', '0007_targets'),
    ]

    operations = []
