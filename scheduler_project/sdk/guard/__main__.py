"""Start the guard of a worker; the worker does so."""

from .guard import main

main()
