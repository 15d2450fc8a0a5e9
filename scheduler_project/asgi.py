"""Make the application that each server process loads."""

import gc
import multiprocessing
import os
import signal
import sys

import django
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_project.settings")
django.setup()

from scheduler_project.sdk.process.processes import die_with_parent  # noqa: E402 - they need the settings
from scheduler_project.server.handler import RequestHandler  # noqa: E402

if parent := multiprocessing.parent_process():
    # One of several that outlived the first would keep the port.
    die_with_parent(parent.pid or 0, signal.SIGTERM)
# How long the event loop waits for a thread that computes, twice for each request. Python's default is 5 ms.
sys.setswitchinterval(0.001)
application = RequestHandler()
_ = get_resolver().url_patterns  # Load the views now, not with the first request.
# What is loaded lives as long as the process. Looking through it for garbage stops all requests for 0.15 s.
gc.collect()
gc.freeze()
