"""Metrics, logs, HTTP pages, and answers to queries."""
