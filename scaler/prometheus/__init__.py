"""Samples and demand queries from Prometheus, Thanos, Mimir or whatever else speaks Prometheus' HTTP API."""
