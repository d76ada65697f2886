"""Is the workload idle? Samples become a verdict: Idle, Busy or Unknown. Pure."""
