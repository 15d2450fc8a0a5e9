"""Serve the rows of django-celery-beat where they are, in place of its DatabaseScheduler, by any number of schedulers.

A firing is a row of beatkeeper_celery_firing in the host project's database, beside its periodic task. Its states:

    claimed     One transaction: the periodic task is as it was read (xmin), the firing of this planned time is
                inserted (unique), last_run_at and total_run_count move on. Nothing has gone to the broker.
    publishing  Written before the first byte goes to the broker.
    sent        The broker has confirmed the message.
    unknown     Its scheduler died while publishing, and the settings say not to send again.
    refused     It cannot be sent, and why.

A scheduler serves the tasks of the slices whose advisory locks it holds, on the session it works on. The scheduler
that takes a slice over sends what was claimed and not yet publishing; only what was publishing, some milliseconds'
worth, may have arrived, and goes out again under the same message id.

Nothing here needs Django's apps: it also runs in a code base that has the platform's code and not its tables.
"""
