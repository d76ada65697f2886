"""Certificates that are reloaded from files, and the identity of clients."""
