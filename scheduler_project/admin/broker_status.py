"""The doctor's findings about brokers, for a page that cannot wait for them: checked in a thread, and cached."""

import threading
import time

from scheduler_project import doctor
from scheduler_project.doctor import Finding, NamedCheck, broker
from scheduler_project.doctor.findings import Findings, age, problem

CACHED_SECONDS = 15.0
# The page waits this long for a new result; a broker that is away takes five seconds to say so.
MAX_WAIT_SECONDS = 2.0
# A broker that accepts connections and never answers blocks the check.
SILENT_SECONDS = 30.0
CHECKS = [NamedCheck("broker", broker.reachable), NamedCheck("dead messages", broker.dead_messages)]


class BrokerStatus:
    def __init__(self) -> None:
        self.cached: list[Finding] | None = None
        self.started_at = float("-inf")
        self.thread: threading.Thread | None = None
        self.lock = threading.Lock()

    def findings(self) -> Findings:
        self._check_when_due().join(MAX_WAIT_SECONDS)
        waited = time.monotonic() - self.started_at
        if self.thread and self.thread.is_alive() and (self.cached is None or waited > SILENT_SECONDS):
            yield problem(
                f"the brokers have not answered for {age(waited)}",
                "see whether RabbitMQ is alive; `manage.py doctor` checks one after the other and names them",
            )
        yield from self.cached or ()

    def _check_when_due(self) -> threading.Thread:
        # Under the lock, so that one thread checks the brokers however many pages are open.
        with self.lock:
            due = time.monotonic() - self.started_at > CACHED_SECONDS
            if self.thread is None or (due and not self.thread.is_alive()):
                self.started_at = time.monotonic()
                self.thread = threading.Thread(target=self._check, name="broker status", daemon=True)
                self.thread.start()
            return self.thread

    def _check(self) -> None:
        self.cached = [result.finding for result in doctor.examine(CHECKS)]


status = BrokerStatus()
