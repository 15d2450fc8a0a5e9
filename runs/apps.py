from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "runs"
    label = "beatkeeper_runs"
    verbose_name = "Runs"

    def ready(self) -> None:
        from jobs import hooks
        from runs import events
        from runs.job_hooks import RunHooks

        hooks.register(RunHooks())
        events.listen(events.log_event)
