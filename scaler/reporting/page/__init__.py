"""The web page: what is idle, until when, who waits, who gave what to whom. Read-only, rendered on the server."""
