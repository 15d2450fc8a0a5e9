from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_runs', '0008_breakers'),
    ]

    operations = []
