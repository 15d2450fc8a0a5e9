from django.db import migrations, models


class Migration(migrations.Migration):
    operations = [
        migrations.CreateModel(
            name="Appointment",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("patient", models.CharField(max_length=100)),
                ("reminded_by", models.CharField(max_length=40, blank=True)),
            ],
        ),
        migrations.CreateModel(
            name="Note",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("text", models.CharField(max_length=200)),
                ("run", models.CharField(max_length=40)),
                ("attempt", models.IntegerField()),
            ],
        ),
    ]
