from django.apps import AppConfig


class ProjectConfig(AppConfig):
    """The platform as a whole: dashboard, doctor, and the commands that start it."""

    name = "scheduler_project"
    label = "beatkeeper_project"
    verbose_name = "Beatkeeper"

    def ready(self) -> None:
        from scheduler_project import checks  # noqa: F401 - registers them
