"""What GPUs did over days: who held them idle, what was reclaimed and who got it, from the scaler's metrics in Prometheus."""
