"""Metrics, logs, HTTP pages, answers to queries, and `doctor`."""
