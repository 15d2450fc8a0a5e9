from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "jobs"
    label = "beatkeeper_jobs"
    verbose_name = "Jobs"

    def ready(self) -> None:
        from jobs import checks  # noqa: F401 - registers them
