"""`idle-gpu-scaler doctor`: problems of a cluster, its permissions and its metrics, and what to do about them."""

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scaler.app.cli.client import Json, ScalerClient
from scaler.app.controllers import pod_namespace
from scaler.app.metrics_source import open_metrics_source
from scaler.app.settings.load import load
from scaler.app.settings.model import Settings
from scaler.doctor.calls.tls_findings import check_calls, parse_connect_to, tls_findings
from scaler.doctor.calls.trigger_authentication import TriggerAuthenticationReader
from scaler.doctor.cluster_reader import ClusterReader, Telemetry, account_namespace, reviewed_user
from scaler.doctor.diagnosis import diagnose
from scaler.doctor.facts import DoctorSettings
from scaler.doctor.findings import Finding, Severity, Unread, counts
from scaler.doctor.multikueue import HubReader, is_hub, multikueue_findings
from scaler.doctor.permissions import RuleUser
from scaler.idleness.policy import Trust, resolve
from scaler.idleness.relabel import DEFAULT_RULES, parse_rules
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.transport import KubeTransport
from scaler.reporting import logs
from scaler.reporting.metrics import Metrics

_STYLES = {Severity.OK: "green", Severity.WARN: "yellow", Severity.FAIL: "bold red"}
_NAMED = 3
"""Objects with the same finding that a terminal shows; the JSON has all of them."""


def run_doctor(client: ScalerClient, *, user: str, connect_to: str = "") -> int:
    """The exit status: 1 where something fails. Raises: ScalerError."""
    at = parse_connect_to(connect_to)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors are findings of ours
    settings = load(client.config, environ=os.environ, flags=client.flags)
    logs.configure(level="error", style="text")
    findings = asyncio.run(_examine(settings, user, at))
    client.show(answer_of(findings), render)
    return 1 if counts(findings)[Severity.FAIL] else 0


async def _examine(settings: Settings, user: str, connect_to: tuple[str, int] | None) -> list[Finding]:
    kubernetes = settings.kubernetes
    transport = await KubeTransport.connect(
        kubernetes.kubeconfig, kubernetes.context, call_seconds=kubernetes.timeout.total_seconds()
    )
    async with transport, _telemetry(settings) as telemetry:
        reader = ClusterReader(
            transport,
            GpuResources(patterns=settings.gpu_resources),
            namespaces=kubernetes.namespaces,
            lease_namespace=_lease_namespace(settings, user),
            lease_name=settings.lease_name,
            kueue_namespace=settings.multi_kueue.namespace,
        )
        now = datetime.now(UTC)
        facts = await reader.take(_wanted(settings), telemetry, reviewed_user(user), now)
        triggers = await TriggerAuthenticationReader(transport).take(facts.own_triggers())
        results = await check_calls(triggers, connect_to, now)
        hub = (
            [*multikueue_findings(facts, await _hub_reader(settings, transport).take(facts), now)]
            if is_hub(facts)
            else []
        )
        return [*diagnose(facts, now), *hub, *tls_findings(triggers, results, now)]


def _hub_reader(settings: Settings, transport: KubeTransport) -> HubReader:
    of_hub = settings.multi_kueue
    return HubReader(
        transport=transport,
        namespace=of_hub.namespace,
        offer_name=of_hub.offer_name,
        dispatches="dispatcher" in settings.components,
    )


@asynccontextmanager
async def _telemetry(settings: Settings) -> AsyncIterator[Telemetry | Unread]:
    """The metrics source, where one is named. Raises: ConfigurationError where it cannot be used."""
    if not settings.prometheus.url and not settings.dcgm.endpoints:
        yield Unread("no metrics source was named, so that nothing is known of it")
        return
    source = open_metrics_source(settings, Metrics())
    try:
        yield Telemetry(
            source=source,
            signals=[signal.signal() for signal in settings.signals],
            rules=DEFAULT_RULES if settings.relabel is None else parse_rules(settings.relabel),
            trust=settings.trust.into(Trust),
            policy=resolve(("settings", settings.defaults.overrides())),
            asked_every=settings.evaluation.interval if settings.dcgm.endpoints else None,
        )
    finally:
        await source.close()


def _wanted(settings: Settings) -> DoctorSettings:
    return DoctorSettings(
        addresses=frozenset(settings.keda.scaler_addresses),
        defaults=settings.defaults.overrides(),
        reclaim=settings.reclaim.policy(),
        max_window=settings.evaluation.max_window,
        reconciles=settings.writes,
        optional=_optional(settings),
        namespaces=settings.kubernetes.namespaces,
        notified_by=settings.notifications.notify_targets(),
    )


def _optional(settings: Settings) -> frozenset[RuleUser]:
    used = {
        RuleUser.TOKENS: settings.http.wake or bool(settings.page.user_header),
        RuleUser.SUSPEND_AT: settings.suspend_at,
        RuleUser.DISPATCHER: "dispatcher" in settings.components,
        RuleUser.SCORES: "dispatcher" in settings.components and settings.multi_kueue.scores,
    }
    return frozenset(part for part, is_on in used.items() if is_on)


def _lease_namespace(settings: Settings, user: str) -> str:
    """The namespace of the Lease: what the settings say, or that of the account or Pod."""
    kubernetes = settings.kubernetes
    named = kubernetes.lease.namespace or account_namespace(user)
    return named or pod_namespace(has_kubeconfig=kubernetes.kubeconfig is not None) or "default"


# ------------------------------------------------------------------------------------------------------------ rendering


def answer_of(findings: Sequence[Finding]) -> Json:
    names = ("severity", "topic", "check", "where", "what", "do")
    rows = [{name: getattr(each, name) for name in names} for each in findings]
    return {"findings": rows, "counts": {str(severity): count for severity, count in counts(findings).items()}}


def render(answer: Json, width: int) -> RenderableType:  # noqa: ARG001 (sentences fold by themselves)
    """The findings for a terminal, by topic; those that differ only in the object are merged."""
    by_topic: dict[str, list[Json]] = defaultdict(list)
    for finding in answer["findings"]:
        by_topic[finding["topic"]].append(finding)
    parts: list[RenderableType] = []
    for topic, findings in by_topic.items():
        parts += [Text(topic, style="bold"), Padding(_table(findings), (0, 0, 1, 2))]
    summary = ", ".join(f"{count} {severity}" for severity, count in answer["counts"].items())
    return Group(*parts, Text(f"{summary}."))


def _table(findings: Sequence[Json]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=44)
    table.add_column(overflow="fold")
    for finding, where in _merged(findings):
        severity = Severity(finding["severity"])
        reason = "" if severity is Severity.OK else f"{finding['check']}: "
        do = f"\n→ {finding['do']}" if finding["do"] and severity is not Severity.OK else ""
        said = Text.assemble((reason, _STYLES[severity]), finding["what"], (do, "cyan"))
        table.add_row(Text(severity, style=_STYLES[severity]), where, said)
    return table


def _merged(findings: Sequence[Json]) -> Iterator[tuple[Json, str]]:
    """Each finding once, with the objects that it is about."""
    same: dict[tuple[str, ...], list[Json]] = defaultdict(list)
    for finding in findings:
        key = tuple(finding[part] for part in ("severity", "check", "what", "do"))
        same[key].append(finding)
    for group in same.values():
        names = [each["where"] for each in group if each["where"]]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield group[0], ", ".join(names[:_NAMED]) + more
