"""Requests over HTTP that write: a wake-up by token; a keep, an exclusion or a wake-up by a signed link."""
