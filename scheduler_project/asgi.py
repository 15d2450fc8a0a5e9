"""Make the application that each server process loads."""

import multiprocessing
import os
import signal

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_project.settings")
django.setup()

from scheduler_project.sdk.process.processes import die_with_parent  # noqa: E402 - they need the settings
from scheduler_project.server.handler import RequestHandler  # noqa: E402

if parent := multiprocessing.parent_process():
    # One of several that outlived the first would keep the port.
    die_with_parent(parent.pid or 0, signal.SIGTERM)
application = RequestHandler()
