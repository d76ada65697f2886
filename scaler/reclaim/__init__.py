"""Which idle workloads are suspended for a pending Workload? A plan, and its execution step by step."""
