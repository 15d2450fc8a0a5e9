"""The scheduler as it is, which notes in a file when how many of its wake-ups have been confirmed."""

import os
import threading
import time

from runs.beat import PartitionedScheduler
from runs.scheduler.dispatch import dispatch
from tests.benchmarks.confirmations import FILE, NOTE

# So much later than it was, a confirmation may be seen.
LOOK_SECONDS = 0.002


class TimedScheduler(PartitionedScheduler):
    def setup_schedule(self) -> None:
        # Nobody claims: else the wake-ups that are sent again for what nobody claimed would be counted.
        dispatch.LATE_SECONDS = 86_400.0
        super().setup_schedule()
        threading.Thread(target=self._note, daemon=True).start()

    def _note(self) -> None:
        file = os.open(os.environ[FILE], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        last = 0
        assert self.publishers is not None
        while True:
            so_far = sum(publisher.confirmed for publisher in self.publishers.by_broker.values())
            if so_far != last:
                os.write(file, NOTE.pack(so_far, time.time()))
                last = so_far
            time.sleep(LOOK_SECONDS)
