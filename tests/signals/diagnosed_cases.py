"""What `doctor` says of a case of `exporter_cases` in the end, by the settings and samples of `judged_cases`."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from exporter_cases import COLLECTIONS, load
from judged_cases import JUDGED_S, CaseCluster, in_memory, instant, settings_of

from scaler.doctor.cluster_reader import Telemetry, source_series
from scaler.doctor.findings import Finding, Severity
from scaler.doctor.signals import metrics_findings
from scaler.doctor.verdicts import Gpus
from scaler.idleness.policy import Trust, resolve
from scaler.idleness.relabel import DEFAULT_RULES, parse_rules
from scaler.kube.objects.gpu_pods import GpuResources, gpu_pod

AT = instant(COLLECTIONS) + timedelta(seconds=JUDGED_S)


def problems(name: str, settings: str) -> Sequence[Finding]:
    case = load(name)
    chosen = settings_of(case, settings)
    telemetry = Telemetry(
        source=in_memory(case, lambda: AT),
        signals=[signal.signal() for signal in chosen.signals],
        rules=DEFAULT_RULES if chosen.relabel is None else parse_rules(chosen.relabel),
        trust=chosen.trust.into(Trust),
        policy=resolve(("settings", chosen.defaults.overrides())),
    )
    gpus = _gpus(CaseCluster(case=case), GpuResources(patterns=chosen.gpu_resources))
    read = asyncio.run(source_series(telemetry, gpus, AT))
    return [each for each in metrics_findings(read, AT) if each.severity is not Severity.OK]


def _gpus(cluster: CaseCluster, resources: GpuResources) -> Gpus:
    for collection in range(1, COLLECTIONS + 1):
        tuple(cluster.advance(collection))
    pods = [each for each in cluster.memory.pods.items() if resources.may_be_held_by(each.spec)]
    return Gpus(
        nodes={each.metadata.name: each for each in cluster.memory.nodes.items()},
        pods={each.metadata.key: gpu_pod(each, resources) for each in pods},
    )
