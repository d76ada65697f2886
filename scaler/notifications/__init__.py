"""What owners are told of their workloads: which lines of a history, to whom, and how."""
