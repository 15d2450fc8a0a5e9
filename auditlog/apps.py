from django.apps import AppConfig


class AuditlogConfig(AppConfig):
    name = "auditlog"
    label = "beatkeeper_auditlog"
    verbose_name = "Audit"
