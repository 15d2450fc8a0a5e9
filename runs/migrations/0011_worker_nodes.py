from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_runs', '0010_celery_beat'),
    ]

    operations = []
