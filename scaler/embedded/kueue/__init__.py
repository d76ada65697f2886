"""Kueue's part of the story: suspension, quota and gangs in order, with Kueue's own decisions about who gets what.

What it does it does as Kueue does it, in Kueue's order and words, deactivation and its traps included. Quota is the
engine of `core.quota`: cohorts, flavors, lending and borrowing, priorities, preemption, fair sharing. What is left out:
topology, MultiKueue, pod groups, elastic jobs, waitForPodsReady, LimitRanges.
"""

from scaler.embedded.kueue.controller import Kueue, KueueConfig
from scaler.embedded.kueue.provisioning import ProvisioningCheck

__all__ = ["Kueue", "KueueConfig", "ProvisioningCheck"]
