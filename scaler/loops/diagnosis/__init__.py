"""What is wrong with this cluster, as far as handing idle GPUs to gangs goes? `doctor`'s findings.

`survey` reads, once and only by reads; everything else is pure, and each file answers one question.
"""

from scaler.loops.diagnosis.facts import Facts, Objects, Wanted, diagnose
from scaler.loops.diagnosis.findings import Finding, Listing, Severity, Topic, Unread, counts

__all__ = ["Facts", "Finding", "Listing", "Objects", "Severity", "Topic", "Unread", "Wanted", "counts", "diagnose"]
