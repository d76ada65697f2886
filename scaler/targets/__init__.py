"""What is scaled, and in what state is it? Scale targets, their Workloads, pods, owners, and what annotations ask for."""
