"""The shop's own database."""

import sqlite3
from contextlib import closing

from flask import current_app

TABLES = """
CREATE TABLE IF NOT EXISTS sale (id INTEGER PRIMARY KEY, article TEXT, euros REAL, billed_by TEXT);
CREATE TABLE IF NOT EXISTS note (id INTEGER PRIMARY KEY, text TEXT, run TEXT, attempt INTEGER);
"""


def _open():
    books = sqlite3.connect(current_app.config["DATABASE"], timeout=30, isolation_level=None)
    books.executescript(TABLES)
    return closing(books)


def sell(article, euros):
    with _open() as books:
        books.execute("INSERT INTO sale (article, euros) VALUES (?, ?)", (article, euros))


def bill_open_sales(run):
    with _open() as books:
        return books.execute("UPDATE sale SET billed_by = ? WHERE billed_by IS NULL", (run,)).rowcount


def write_down(text, request):
    with _open() as books:
        values = (text, request.id, request.retries + 1)
        books.execute("INSERT INTO note (text, run, attempt) VALUES (?, ?, ?)", values)
