"""What is scaled, and what is its state? Scale targets, their Workloads, pods and owners, and what annotations ask for."""
