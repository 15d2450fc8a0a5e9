from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "runs"
    label = "beatkeeper_runs"
    verbose_name = "Runs"

    def ready(self) -> None:
        from runs import held_back, listeners  # noqa: F401 - connects them
