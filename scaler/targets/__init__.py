"""What is scaled, and how far is it? Scale targets, their Workloads, pods and owners, and what annotations ask for."""
