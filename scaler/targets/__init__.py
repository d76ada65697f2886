"""What is scaled, and what is its state? Scale targets, their Workloads, pods, owners, and requests by annotation."""
