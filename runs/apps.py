from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "runs"
    label = "beatkeeper_runs"
    verbose_name = "Runs"
