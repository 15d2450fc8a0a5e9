"""The product's settings, and one more address: `api_urls`."""

from scheduler_project.settings import *  # noqa: F403

ROOT_URLCONF = "tests.benchmarks.api_urls"
# The limits are counted, as everywhere, and never reached.
REQUESTS_PER_MINUTE = 10_000_000
