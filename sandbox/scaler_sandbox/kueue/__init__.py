"""Kueue's part of the sandbox: suspension, quota and admission in Kueue's order.

What it does it does as Kueue does it, in Kueue's order and words, deactivation and its traps included. Quota is the
engine of `scaler.quota`: cohorts, flavors, lending and borrowing, priorities, preemption, fair sharing. What is left
out: topology, pod groups, elastic jobs, partial admission, waitForPodsReady, preemption gates, LimitRanges, and the
shares that statuses show with fair sharing. MultiKueue is in `scaler_sandbox.multikueue`.
"""

from scaler_sandbox.kueue.controller import Kueue, KueueConfig

__all__ = ["Kueue", "KueueConfig"]
