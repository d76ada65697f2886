"""How owners are notified of their workloads: which lines of a history, to whom, and how."""
