"""What would Kueue do? Its quota, queues and preemption, simulated cycle by cycle."""
