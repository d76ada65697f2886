"""Situations that people have reported elsewhere give what their READMEs expect, by their own runner.

A situation that does not yet is marked; it has to fail, so that it is noticed when it is mended.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from played_reports import FOLDER, Played, play, read
from prometheus_server import require_prometheus
from recordings import needs_data

X, R = "demo/x", "demo/r"
PLAN = "server:/api/v1/plans/demo/raycluster-g-1"


class Expected(NamedTuple):
    """What a README expects, one sentence of it."""

    sentence: str
    holds: Callable[[Played], bool]
    may_be_late: bool = True
    """Whether it may hold only later on a busy machine; a wrong 0 may not come at any time."""


def _never_0(target: str) -> Expected:
    return Expected(
        f"{target} is never answered 0",
        lambda played: all(each.is_active is not False for each in played.answers if each.target == target),
        may_be_late=False,
    )


def _is_0(played: Played) -> bool:
    return played.last(X).is_active is False


def _is_unknown(played: Played) -> bool:
    last = played.last(X)
    return last.is_active is None and last.decision["verdict"] in {"Unknown", None}


def _names(played: Played, target: str, *words: str) -> bool:
    """Whether the last decision's message has all of these, which are regular expressions."""
    message = played.last(target).message
    return all(re.search(word, message, re.IGNORECASE) for word in words)


def _is_0_or_names(*words: str) -> Callable[[Played], bool]:
    return lambda played: _is_0(played) or _names(played, X, *words)


def _victims(played: Played) -> list[str]:
    """Whom the plan takes that is under way, or would be made."""
    plan = played.json(PLAN)
    return [victim["name"] for each in (plan["active"], plan["plan"]) if each for victim in each["victims"]]


def _pods_judged(played: Played) -> set[str]:
    return {gpu["pod"] for gpu in played.last(R).decision["gpus"]}


def _attached(played: Played) -> set[str]:
    items = played.json("/apis/keda.sh/v1alpha1/namespaces/demo/scaledobjects")["items"]
    return {each["spec"]["scaleTargetRef"]["name"] for each in items}


def _problems(played: Played) -> str:
    return json.dumps(played.json("/apis/idlegpu.io/v1alpha1/clusteridlepolicies/all")["status"]["problems"])


def _is_of_its_work(played: Played) -> bool:
    """Whether the time since when it is idle is another one than that of its container's start."""
    decision = played.last(X).decision
    return decision["idleSince"] not in {None, decision["runningSince"]}


EXPECTED: Mapping[str, Sequence[Expected]] = {
    "01-second-exporter-without-pods": [Expected("idle: the second exporter's own pod holds no GPU", _is_0)],
    "02-pod-gone-still-reported": [
        Expected(
            "judged by the pod that exists, or the other one is said not to exist",
            _is_0_or_names(r"old-7", r"not exist|no longer|is gone|holds no gpu"),
        )
    ],
    "03-resource-renamed": [
        Expected(
            "the message says which resource is not among gpuResources",
            lambda played: _names(played, X, r"nvidia\.com/a100", "gpuResources"),
        )
    ],
    "04-dra-claim": [
        Expected(
            "judged, or the claim is said not to be supported",
            lambda played: bool(played.last(X).decision["gpus"]) or _names(played, X, "claim"),
        )
    ],
    "05-paused-false": [
        Expected("it is a victim for the gang that waits", lambda played: _victims(played) == [R]),
        Expected("no metric calls it paused", lambda played: "workload_paused{" not in played.pages["server:/metrics"]),
    ],
    "05-paused-false+without": [
        Expected("it is a victim for the gang that waits", lambda played: _victims(played) == [R])
    ],
    "06-main-ended-sidecar-runs": [
        Expected(
            "found idle, or the message says that its GPU container has ended",
            _is_0_or_names(r"x-1", r"ended|complet|terminated|finished|exited"),
        )
    ],
    "07-crash-loop": [
        Expected("found idle, or the message names the crash loop", _is_0_or_names(r"x-1", "CrashLoopBackOff"))
    ],
    "08-rollout-stuck": [
        Expected("found idle, or the message names the pod that does not start", _is_0_or_names(r"x-2"))
    ],
    "09-victoriametrics-partial": [
        _never_0(X),
        Expected("demand is unknown", lambda played: _is_unknown(played) and "partial" in played.last(X).error.lower()),
    ],
    "12-kueue-v1beta1-only": [
        Expected(
            "doctor says which version is missing",
            lambda played: "v1beta2 is needed" in " ".join(played.commands["doctor"].split()),
        ),
        Expected("so does the decision, which explain shows", lambda played: _names(played, R, "v1beta[12]")),
    ],
    "14-mig-profiling-zero": [_never_0(X), Expected("Unknown, as the board works", _is_unknown)],
    "15-frozen-page": [_never_0(X), Expected("Unknown, as the page stands still", _is_unknown)],
    "16-idle-since-forgets-work": [
        Expected("it was seen to work", lambda played: played.answers[0].decision["verdict"] == "Busy"),
        Expected("idle since its last work, not since its start", _is_of_its_work),
    ],
    "16b-plan-takes-the-long-training": [
        Expected("the plan takes the one that has done nothing", lambda played: _victims(played) == ["demo/empty"])
    ],
    "16b-plan-takes-the-long-training+control": [
        Expected("the plan takes the one that has done nothing", lambda played: _victims(played) == ["demo/empty"])
    ],
    "24-elastic-slices": [Expected("both pods are judged", lambda played: _pods_judged(played) == {"r-1", "r-2"})],
    "25-policy-attaches-operators-deployments": [
        Expected(
            "what other controllers own is not attached",
            lambda played: not _attached(played) & {"nim", "llm-kserve", "gang-0"},
            may_be_late=False,
        ),
        Expected("a Deployment of nobody's is", lambda played: "plain" in _attached(played)),
        Expected(
            "the policy's status names the owners that are not jobs",
            lambda played: all(
                re.search(owner, _problems(played)) for owner in ("NIMService[ /]nim", "LLMInferenceService[ /]llm")
            ),
        ),
    ],
    "33-lws-worker-works": [
        _never_0("demo/vllm"),
        Expected("1, as its worker works", lambda played: played.last("demo/vllm").is_active is True),
        Expected("because it is seen", lambda played: played.last("demo/vllm").decision["verdict"] == "Busy"),
    ],
}

KNOWN: Mapping[str, str] = {}
"""What does not give what is expected, and why."""


def _situations() -> Iterator[Any]:
    for name in EXPECTED:
        why = KNOWN.get(name)
        known = [pytest.mark.xfail(strict=True, raises=AssertionError, reason=why)] if why else []
        yield pytest.param(*f"{name}+".split("+")[:2], id=name, marks=known)


@needs_data(FOLDER)
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("name", "variant"), [*_situations()])
def test_a_situation_gives_what_its_readme_expects(name: str, variant: str, tmp_path: Path) -> None:
    if name.startswith("01"):
        require_prometheus()  # two exporters are scraped
    key = f"{name}+{variant}" if variant else name
    missing = _missing(key, play(name, variant, tmp_path / "once"))
    if missing and all(each.may_be_late for each in missing) and key not in KNOWN:
        missing = _missing(key, play(name, variant, tmp_path / "slower", slower=3))

    assert [each.sentence for each in missing] == []


def _missing(key: str, played: Played) -> list[Expected]:
    return [each for each in EXPECTED[key] if not each.holds(played)]


@needs_data(FOLDER)
def test_every_situation_is_expected_something_of() -> None:
    there = {path.parent.name for path in FOLDER.glob("*/case.yaml")}
    assert {name.partition("+")[0] for name in EXPECTED} == there
    assert set(KNOWN) <= set(EXPECTED)


def test_what_the_runner_prints_is_read_apart() -> None:
    printed = """\
[  5.0s] demo/x: IsActive=True
      {"reason": "Starting", "message": "0 of 1 run"}
[ 14.1s] demo/x: IsActive -> UNAVAILABLE: SharedGPU: twice
      {"reason": "SharedGPU", "message": "twice"}
$ idle-gpu-scaler explain demo/x --server http://127.0.0.1:1 -> exit 0
demo/x  scales Deployment x

GET server:/metrics 200 a 1
b 2
log:
  {"event": "x"}
"""
    played = read(printed)

    assert [(each.is_active, each.error) for each in played.answers] == [
        (True, ""),
        (None, "UNAVAILABLE: SharedGPU: twice"),
    ]
    assert played.last("demo/x").message == "SharedGPU: twice"
    assert played.commands == {"explain": "demo/x  scales Deployment x\n\n"}
    assert played.pages == {"server:/metrics": "a 1\nb 2"}
