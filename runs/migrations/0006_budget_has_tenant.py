"""Refuse a retry that waits for a budget and names no tenant: nothing would find it again."""

from django.db import migrations, models
from django.db.models import F, Q

BUDGETED = Q(("reason", "retry_budget"), ("state", "blocked"))


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_runs", "0005_words")]
    operations = [
        migrations.AddConstraint(
            model_name="liverun",
            constraint=models.CheckConstraint(
                condition=Q(BUDGETED, ("budget_tenant", F("tenant_id")), ("budget_tenant__isnull", False))
                | (~BUDGETED & Q(("budget_tenant", None))),
                name="live_run_budget_has_tenant",
            ),
        ),
    ]
