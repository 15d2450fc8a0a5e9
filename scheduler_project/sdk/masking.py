"""Keep secrets out of a code base's own Sentry events."""

from .secret_values.masking import masked_event as masked_event
