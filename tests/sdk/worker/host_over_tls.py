"""The sample app as a code base has it whose own broker speaks TLS."""

import json
import os

from tests.support.sample_tasks import app

app.conf.broker_use_ssl = json.loads(os.environ["SAMPLE_BROKER_USE_SSL"])
