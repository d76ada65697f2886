"""What owners are told of their workloads: which lines of a history, to whom, how, and by whom it was answered."""
