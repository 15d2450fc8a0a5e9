"""The life of a run: how it is planned, dispatched, executed and recorded."""
