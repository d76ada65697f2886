"""Samples scraped directly from dcgm-exporter endpoints, for clusters without Prometheus."""
