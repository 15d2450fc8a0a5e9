from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "jobs"
    label = "beatkeeper_jobs"
    verbose_name = "Jobs"
