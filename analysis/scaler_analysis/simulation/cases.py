"""Which policies are compared: windows on top of the settings, and files of IdlePolicies. Pure.

A policy is resolved as in production: settings, then the trigger metadata that a policy writes. Nothing is known of
annotations of the past.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scaler.attachment.policy import AttachmentPolicy, Job, followed_policy, in_order
from scaler.decision.trigger_metadata import by_source, parse_metadata, resolve_policy
from scaler.errors import ConfigurationError, MetadataError
from scaler.idleness.durations import format_duration
from scaler.idleness.policy import Overrides, Policy, resolve
from scaler_analysis.simulation.recordings.recorded import RecordedWorkload
from scaler_analysis.simulation.replay import PolicyCase

NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""The label of a namespace that is known without its object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBounds:
    """What the settings allow, and what policies say that leave something out."""

    defaults: Overrides
    longest: timedelta
    shortest: timedelta
    """One collection interval."""
    hooks: Collection[str] = ()


def policy_of_settings(bounds: PolicyBounds, flags: Overrides) -> Policy:
    """What every workload has without a policy of its own, and with these flags. Raises: ConfigurationError."""
    try:
        policy = resolve(("settings", bounds.defaults), ("flag", flags))
    except MetadataError as error:
        raise ConfigurationError(str(error)) from None
    if not bounds.shortest <= policy.window or policy.idle_after > bounds.longest:
        raise ConfigurationError(
            f"--idle-after {format_duration(policy.idle_after)}: write {format_duration(bounds.shortest)} (the time "
            f"between two samples) to {format_duration(bounds.longest)} (evaluation.maxWindow of the settings)"
        )
    return policy


def window_case(name: str, policy: Policy) -> PolicyCase:
    """One policy for all workloads."""
    return PolicyCase(name=name, policy_of=lambda _: policy)


def file_case(name: str, policies: Sequence[AttachmentPolicy], bounds: PolicyBounds, at: datetime) -> PolicyCase:
    """IdlePolicies, each for the workloads that would follow it; exclusions as of that instant.

    Raises: ConfigurationError where one is not valid.
    """
    problems = [f"{name}: {each} is not valid: {each.problem}" for each in policies if each.problem]
    if problems:
        raise ConfigurationError("\n".join(problems))
    ordered = in_order(policies)

    def policy_of(workload: RecordedWorkload) -> Policy | None:
        followed = followed_policy(_job(workload), ordered, at)
        if followed is None or not followed.attaches:
            return None
        try:
            return resolve_policy(
                by_source(parse_metadata(followed.metadata), {}),
                (),
                defaults=bounds.defaults,
                longest=bounds.longest,
                shortest=bounds.shortest,
                hooks=bounds.hooks,
            )
        except MetadataError as error:
            raise ConfigurationError(f"{name}: {followed.policy}: {error}") from None

    return PolicyCase(name=name, policy_of=policy_of)


def _job(workload: RecordedWorkload) -> Job:
    return Job(
        namespace=workload.namespace,
        api_version="",
        kind=workload.kind,
        name=workload.name,
        uid="",
        namespace_labels={NAMESPACE_NAME: workload.namespace},
        queue=workload.queue,
        gpu_models=workload.models or None,
    )


def with_window(policy: Policy, idle_after: timedelta) -> Policy:
    """The policy with another `idleAfter`, which no other time of it exceeds."""
    pressed = policy.idle_after_under_pressure
    return replace(
        policy, idle_after=idle_after, idle_after_under_pressure=None if pressed is None else min(pressed, idle_after)
    )
