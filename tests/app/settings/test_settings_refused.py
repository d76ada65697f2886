"""Settings that cannot be used are refused: with their place, and with what to write instead."""

from pathlib import Path

import pytest

from scaler.app.settings.load import load
from scaler.errors import ConfigurationError

UNIT_ONCE = "say the unit once: 'unit' for a list of metrics, or a map such as {METRIC: percent}"
SETTINGS = (
    ("kubernetes: {namespaces: [a, b, a]}", "kubernetes.namespaces: a is named more than once…"),
    ("kubernetes: {namespaces: [Team A]}", "kubernetes.namespaces.0: String should match pattern…"),
    ("kubernetes: {namespaces: ['']}", "kubernetes.namespaces.0: String should match pattern…"),
    ("kubernetes: {namespaces: a}", "kubernetes.namespaces: it is no list; write '- ' before each item"),
    ("prometheus: {ulr: 'http://p:9090'}", "prometheus.ulr: unknown setting; did you mean 'url'?"),
    ("promehteus: {}", "promehteus: unknown setting; did you mean 'prometheus'?"),
    ("evaluation: {max_window: 1h}", "evaluation.max_window: unknown setting; did you mean 'maxWindow'?"),
    ("trust: {interval: 1m}", "trust.interval: unknown setting; did you mean 'collectionInterval'?"),
    ("evaluation: {maxwindow: 1h}", "evaluation.maxwindow: unknown setting; did you mean 'maxWindow'?"),
    ("http: {port: 1}", "http.port: unknown setting; known here: address, tls, tokenAudiences, wake"),
    (
        "signals: [{name: a, metrics: [m], unti: ratio, unit: ratio}]",
        "signals.0.unti: unknown setting; did you mean 'unit'?",
    ),
    (
        "prometheus: {basic: {username: u, passwordFile: /p, pasword: x}}",
        "prometheus.basic.pasword: unknown setting; did you mean 'passwordFile'?",
    ),
    (
        "prometheus: {url: 'http://p:9090'}\ndcgm: {endpoints: ['http://e:9400/metrics']}",
        "document: prometheus.url and dcgm.endpoints are both set; configure one source",
    ),
    ("wake: [{name: inbox, query: queue_length}]", "document: wake queries need prometheus.url"),
    (
        "defaults: {idleAfter: 25h}",
        "document: idleAfter is 1d1h by default and evaluation.maxWindow only 1d; raise "
        "evaluation.maxWindow or set defaults.idleAfter",
    ),
    (
        "evaluation: {maxWindow: 20m}",
        "document: idleAfter is 1h by default and evaluation.maxWindow only 20m; raise "
        "evaluation.maxWindow or set defaults.idleAfter",
    ),
    (
        "signals: [{name: a, metrics: [m], unit: ratio}, {name: a, metrics: [n], unit: percent}]",
        "document: two signals are named a",
    ),
    (
        "kubernetes: {lease: {renewDeadline: 20s}}",
        "kubernetes.lease: retryPeriod < renewDeadline < duration must hold, or two leaders could act at once",
    ),
    ("signals: [{name: a, metrics: [m]}]", f"signals.0: {UNIT_ONCE}"),
    ("signals: [{name: a, metrics: {m: ratio}, unit: ratio}]", f"signals.0: {UNIT_ONCE}"),
    (
        "signals: [{name: a, metrics: {m: joule}}]",
        "signals.0.metrics.map.m: it has to be 'ratio' or 'percent'",
    ),
    ("signals: [{name: a, metrics: [m], unit: count}]", "signals.0.unit: it has to be 'ratio' or 'percent'"),
    ("signals: [{name: a, metrics: {}}]", "signals.0.metrics.map: Dictionary should have at least 1 item…"),
    (
        "signals: [{name: a, metrics: m, unit: ratio}]",
        "signals.0.metrics.list: it is no list; write '- ' before each item",
    ),
    ("signals: []", "document: no signal is configured; leave signals out…"),
    ("defaults: {gpus: most}", "defaults.gpus: 'most' is not a GPU rule; write 'all'…"),
    ("mode: Enforce", "mode: it has to be 'observe' or 'enforce'"),
    ("defaults: {mode: observe}", "defaults.mode: unknown setting; known here: activeAbove, gpus, idleAfter…"),
    ("components: [scalar]", "components.0: it has to be 'scaler', 'reconciler' or 'dispatcher'"),
    ("reclaim: {grantFor: 0s}", "reclaim.grantFor: '0s' is no time at all; write a duration above 0, such as '30s'"),
    ("reclaim: {maxVictims: 0}", "reclaim.maxVictims: it has to be greater than or equal to 1"),
    ("reclaim: {cost: {idleTime: -1}}", "reclaim.cost.idleTime: it has to be greater than or equal to 0"),
    ("reclaim: {cost: {priority: .nan}}", "reclaim.cost.priority: it has to be…"),
    ("reclaim: {unprotected: allow}", "reclaim.unprotected: it has to be 'Warn' or 'Refuse'"),
    ("reclaim: {priorityBoost: {value: 0}}", "reclaim.priorityBoost.value: it has to be less than 0"),
    (
        "reclaim: {priorityBoost: {enabled: maybe}}",
        "reclaim.priorityBoost.enabled: it has to be 'auto', 'on' or 'off'",
    ),
    (
        "reclaim: {fairSharing: {preemptionStrategies: [LessThanInitialShare, LessThanOrEqualToFinalShare]}}",
        "reclaim.fairSharing.preemptionStrategies: Kueue does not take this list; write [LessThanOrEqualToFinalShare] "
        "or [LessThanInitialShare] or [LessThanOrEqualToFinalShare, LessThanInitialShare]",
    ),
    (
        "defaults: {idleAfterUnderPressure: 2h}",
        "defaults: idleAfterUnderPressure: 2h is longer than idleAfter (1h); write at most '1h'",
    ),
    (
        "defaults: {idleAfter: 5m, idleAfterUnderPressure: 10m}",
        "defaults: idleAfterUnderPressure: 10m is longer than idleAfter (5m); write at most '5m'",
    ),
    ("defaults: {reclaim: onpressure}", "defaults.reclaim: it has to be 'Always', 'OnPressure' or 'PriorityBoost'"),
    ("grpc: {tls: {certFile: /a}}", "grpc.tls.keyFile: Field required"),
    ("grpc: {tls: {keyFile: /a}}", "grpc.tls.certFile: Field required"),
    (
        "grpc: {tls: {certFile: /a, keyFile: /b, clientNames: [keda]}}",
        "grpc.tls: clientNames are only known from certificates; set clientCaFile, too",
    ),
    (
        "grpc: {tls: {certFile: /a, keyFile: /b, clientCaFile: /c, clientNames: [' ']}}",
        "grpc.tls: clientNames: a name is empty",
    ),
)
"""Where a problem ends in `…`, it goes on."""


@pytest.mark.parametrize(("text", "problem"), SETTINGS)
def test_what_cannot_be_used_is_refused_with_its_place_and_what_to_write(
    tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refusal:
        load(file, environ={}, flags={})
    (found,) = str(refusal.value).splitlines()
    found = found.removeprefix(f"{file}: ")
    beginning = problem.removesuffix("…")
    assert found.startswith(beginning) if beginning != problem else found == problem
