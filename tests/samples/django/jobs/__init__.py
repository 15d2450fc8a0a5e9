"""Vacancies of the clinic; older than any scheduler of that name."""
