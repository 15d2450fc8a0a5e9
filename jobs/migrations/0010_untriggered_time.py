"""Where a way back to django-celery-beat that is cut short finds the time it was about to give back."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_jobs', '0009_declared_jobs'),
    ]

    operations = [
        migrations.AddField(
            model_name='importedtask',
            name='untriggered_at',
            field=models.DateTimeField(null=True),
        ),
    ]
