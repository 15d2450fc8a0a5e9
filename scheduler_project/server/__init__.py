"""Serve the API and the admin: an HTTP protocol with deadlines, and a few threads that run Django."""
