"""What GPUs did over days, from the scaler's metrics in Prometheus: who held them idle, who got what was reclaimed."""
