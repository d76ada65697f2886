"""Samples of the past, and of whom they are: from trace files, Prometheus and Thanos, kept in files."""
