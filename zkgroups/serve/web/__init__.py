"""The HTTP server: access, pages, event streams, metrics and the API."""
