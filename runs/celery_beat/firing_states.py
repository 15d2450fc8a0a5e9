from django.db import models


class FiringState(models.TextChoices):
    CLAIMED = "claimed"
    PUBLISHING = "publishing"
    SENT = "sent"
    # Its scheduler died while publishing; whether it arrived, nobody knows.
    UNKNOWN = "unknown"
    REFUSED = "refused"
