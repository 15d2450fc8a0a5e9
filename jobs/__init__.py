"""Define what should run, when and how, and who may change it. Nothing here knows of runs."""
