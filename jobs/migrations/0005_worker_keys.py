from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_jobs', '0004_time'),
    ]

    operations = []
