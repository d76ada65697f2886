"""What did the GPUs show? Samples of DCGM metrics from Prometheus, Thanos or dcgm-exporter."""
