"""Kueue's part of the story, simple but honest: suspension, quota of ClusterQueues without cohorts, gangs in order.

What it does it does as Kueue does it, in Kueue's order and words, deactivation and its traps included. What it leaves
out: cohorts, borrowing, preemption, partial admission, topology, MultiKueue, pod groups, waitForPodsReady.
"""

from scaler.embedded.kueue.controller import Kueue, KueueTiming

__all__ = ["Kueue", "KueueTiming"]
