"""Which Workloads Kueue would preempt."""
