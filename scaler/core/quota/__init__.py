"""What Kueue would do: its quota tree, flavor assignment, preemption and scheduling cycle as pure functions.

Everything here follows Kueue's scheduler with its default feature gates, so that a plan can be checked against the
decisions that will really be taken. Topology-aware scheduling is not modelled: a Workload that asks for a topology is
marked opaque, and nothing is planned for it.

Source: kubernetes-sigs/kueue, pkg/cache/scheduler, pkg/cache/queue, pkg/scheduler.
"""
