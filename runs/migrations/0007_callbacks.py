from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_runs', '0006_claims'),
    ]

    operations = []
