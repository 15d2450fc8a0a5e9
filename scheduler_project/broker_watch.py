"""What the doctor finds of the brokers, for a page that cannot wait for them: asked beside it, and kept for a while."""

import threading
import time

from scheduler_project import doctor
from scheduler_project.doctor import Finding, Named, broker
from scheduler_project.doctor.findings import Findings, age, problem

KEPT_SECONDS = 15.0
# Of the page, for an answer that is new; a broker that is away says so after five seconds.
LONGEST_WAIT = 2.0
# A broker that takes connections and answers nothing more keeps whoever asks it.
MUTE_SECONDS = 30.0
CHECKS = [Named("broker", broker.reachable), Named("dead messages", broker.dead_messages)]


class BrokerWatch:
    def __init__(self) -> None:
        self.kept: list[Finding] | None = None
        self.asked_at = float("-inf")
        self.asking: threading.Thread | None = None
        self.lock = threading.Lock()

    def findings(self) -> Findings:
        self._ask_when_due().join(LONGEST_WAIT)
        waited = time.monotonic() - self.asked_at
        if self.asking and self.asking.is_alive() and (self.kept is None or waited > MUTE_SECONDS):
            yield problem(
                f"the brokers have been asked for {age(waited)} and do not answer",
                "see whether RabbitMQ is alive; `manage.py doctor` asks one after the other and names them",
            )
        yield from self.kept or ()

    def _ask_when_due(self) -> threading.Thread:
        """However many look at once, the brokers are asked by one of them."""
        with self.lock:
            due = time.monotonic() - self.asked_at > KEPT_SECONDS
            if self.asking is None or (due and not self.asking.is_alive()):
                self.asked_at = time.monotonic()
                self.asking = threading.Thread(target=self._ask, name="broker watch", daemon=True)
                self.asking.start()
            return self.asking

    def _ask(self) -> None:
        self.kept = [line.finding for line in doctor.examine(CHECKS)]


_watch = BrokerWatch()


def findings() -> Findings:
    yield from _watch.findings()
