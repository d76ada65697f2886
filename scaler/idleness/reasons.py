"""Why could a verdict not be reached, and what follows from that? One row of `DOUBTS` for each reason."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum, auto


class UnknownReason(StrEnum):
    """Why a verdict could not be reached. None of these ever shrinks a workload."""

    NO_SAMPLES = "NoSamples"
    """No sample at all of a configured signal in the window."""
    STALE_SAMPLES = "StaleSamples"
    """The newest sample is older than the staleness limit."""
    LOW_COVERAGE = "LowCoverage"
    """The window has too few collection intervals with a sample."""
    SAMPLE_GAP = "SampleGap"
    """One hole in the window is so long that work could hide in it: a collector fault, not idleness."""
    FROZEN_EXPORTER = "FrozenExporter"
    """A counter that always grows stands still: the exporter repeats an old page."""
    SIGNALS_DISAGREE = "SignalsDisagree"
    """One signal is quiet over the window in which another one, its device or its board shows work; or it would show
    work by another unit."""
    MISSING_GPUS = "MissingGPUs"
    """Fewer GPUs report than the pod requests."""
    UNEXPECTED_GPUS = "UnexpectedGPUs"
    """More GPUs report for the pod than it requests, or from a host that may not be its Node: whose the series are is
    not to be trusted."""
    SHARED_GPU = "SharedGPU"
    """One device reports for several pods at once; per-pod readings of a shared GPU can be false zeros."""
    NO_GPU_PODS = "NoGPUPods"
    """No pod of the target holds a GPU as far as is known here, so there is nothing to judge."""
    SOURCE_UNAVAILABLE = "SourceUnavailable"
    """The last read of a signal or of demand failed, was partial, or shows nothing of it."""
    CLOCK_SKEW = "ClockSkew"
    """The clocks of the metrics source and of this program differ by more than is tolerable, or a GPU's samples are yet
    to come."""
    COLD_START = "ColdStart"
    """The window has not been rebuilt from the source since this process started or woke up."""
    STALE_CLUSTER_VIEW = "StaleClusterView"
    """The Kubernetes API has not been heard of for so long that pods may have changed unseen."""
    SUSPENDING = "Suspending"
    """It is asked to be at 0 and its Workload is still active: just scaled down, or seen too late."""
    TARGET_NOT_FOUND = "TargetNotFound"
    """The ScaledObject's scale target does not exist or has no scale subresource."""
    WORKLOAD_MISSING = "WorkloadMissing"
    """The Kueue Workload that the ScalableWorkload was bound to has vanished."""
    UNSUPPORTED_WORKLOAD = "UnsupportedWorkload"
    """A Workload that cannot be suspended without loss, such as a plain Pod's."""
    REMOTE_COPY = "RemoteCopy"
    """A copy that a hub of MultiKueue has created: the hub undoes a suspension here."""
    REMOTE_VERDICT_MISSING = "RemoteVerdictMissing"
    """It runs on another cluster, of which it is not known, or not any more, what its GPUs do."""
    INVALID_POLICY = "InvalidPolicy"
    """The trigger metadata or an annotation holds a value that cannot be used."""


class About(StrEnum):
    """What is in doubt."""

    SOURCE = auto()
    """The scaler's own sources: all workloads are in doubt, and none of them for what its own samples show."""
    TIME = auto()
    """Samples of a GPU, which are missing: mostly those of the whole source are."""
    GPU = auto()
    """What the samples of a single GPU say, or whose it is."""
    WORKLOAD = auto()
    """The objects of the workload."""


@dataclass(frozen=True, slots=True)
class DoubtRow:
    about: About
    advice: str = ""
    """What helps. Reasons that pass by themselves, or are findings of their own, have none."""
    ends_with_window: bool = False
    """Whether it ends once the window of a young pod is full."""
    is_silent: bool = False
    """Whether a GPU without any sample has it."""


DOUBTS: Mapping[str, DoubtRow] = {
    UnknownReason.NO_SAMPLES: DoubtRow(
        About.TIME, "see whether its exporter is scraped, and names pods", is_silent=True
    ),
    UnknownReason.STALE_SAMPLES: DoubtRow(
        About.TIME, "see whether the exporter of its Node is scraped, and how late samples come"
    ),
    UnknownReason.LOW_COVERAGE: DoubtRow(
        About.TIME,
        "if it stays, set trust.collectionInterval to how often samples come: dcgm.endpoints are read every "
        "evaluation.interval, and bring nothing newer than what the exporter collected last",
        ends_with_window=True,
    ),
    UnknownReason.SAMPLE_GAP: DoubtRow(
        About.TIME, "see why its exporter, or the scrape, stopped for a while", ends_with_window=True
    ),
    UnknownReason.FROZEN_EXPORTER: DoubtRow(About.GPU, "restart the exporter, or DCGM's host engine, on its Node"),
    UnknownReason.SIGNALS_DISAGREE: DoubtRow(
        About.GPU, "if it stays, restart the exporter, or DCGM's host engine, on its Node"
    ),
    UnknownReason.MISSING_GPUS: DoubtRow(
        About.GPU, "restart the exporter of its Node, which does not show all of its GPUs", is_silent=True
    ),
    UnknownReason.UNEXPECTED_GPUS: DoubtRow(
        About.GPU,
        "name this cluster in prometheus.matchers, if the source has several; set NODE_NAME from spec.nodeName "
        "on an exporter that names its own pod as host",
    ),
    UnknownReason.SHARED_GPU: DoubtRow(About.GPU, "use MIG, or whole GPUs, for what is to be suspended"),
    UnknownReason.NO_GPU_PODS: DoubtRow(
        About.WORKLOAD,
        "add the resource to gpuResources of the settings, if it is a GPU; exclude the workload if it is a "
        "claim or an init container's",
    ),
    UnknownReason.SOURCE_UNAVAILABLE: DoubtRow(
        About.SOURCE, "see whether the metrics source answers, and answers in whole"
    ),
    UnknownReason.CLOCK_SKEW: DoubtRow(About.SOURCE, "correct the clocks, by NTP"),
    UnknownReason.COLD_START: DoubtRow(About.SOURCE),
    UnknownReason.STALE_CLUSTER_VIEW: DoubtRow(
        About.SOURCE, "see the scaler's log, and its permissions to list and watch"
    ),
    UnknownReason.SUSPENDING: DoubtRow(About.WORKLOAD),
    UnknownReason.TARGET_NOT_FOUND: DoubtRow(
        About.WORKLOAD, "correct scaleTargetRef, or let the scaler read its scale (targets of the chart)"
    ),
    UnknownReason.WORKLOAD_MISSING: DoubtRow(About.WORKLOAD, "correct jobRef, or delete its ScalableWorkload"),
    UnknownReason.UNSUPPORTED_WORKLOAD: DoubtRow(About.WORKLOAD, "scale what owns its pods"),
    UnknownReason.REMOTE_COPY: DoubtRow(About.WORKLOAD),
    UnknownReason.REMOTE_VERDICT_MISSING: DoubtRow(
        About.SOURCE, "see whether the worker is connected, and what doctor says there"
    ),
    UnknownReason.INVALID_POLICY: DoubtRow(About.WORKLOAD, "correct what it names"),
}


def check_complete(words: type[StrEnum], table: Collection[str]) -> None:
    """Raises: TypeError naming the words that have no row in the table."""
    if missing := [str(each) for each in words if each not in table]:
        raise TypeError(f"{words.__name__} without a row: {', '.join(missing)}")


check_complete(UnknownReason, DOUBTS)
