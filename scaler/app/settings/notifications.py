"""Settings of how owners are notified: targets, owners, limits and links."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from scaler.app.settings.fields import NAME, Duration, Section, twice
from scaler.notifications.schedule import DeliveryLimits
from scaler.notifications.senders import TargetConfig, target_kind, target_kinds
from scaler.targets.workloads import NotifyTargets

TargetName = Annotated[str, Field(pattern=NAME, max_length=40)]
"""Part of the name of an annotation."""


_GONE = {
    "mail": "kind mail is now apprise: write `kind: apprise`, and into the file of urlFile "
    "mailtos://USER:PASSWORD@HOST?from=ADDRESS&to=ADDRESS in place of smtp+starttls://USER:PASSWORD@HOST, from and to",
    "alertmanager": "kind alertmanager is gone: the alerts GPUWorkloadWarned and GPUWorkloadSuspended are rules of "
    "Prometheus now, by dashboards/rules/owners.rules.yaml or the chart's rules.owners",
}
"""Kinds of before, and what to write; docs/upgrade.md has more."""


def _known_kind(name: str) -> str:
    if name not in target_kinds():
        raise ValueError(_GONE.get(name, f"{name!r} is none of the kinds {', '.join(target_kinds())}"))
    return name


TargetKind = Annotated[str, AfterValidator(_known_kind), WithJsonSchema({"type": "string", "enum": target_kinds()})]


class TargetSettings(Section):
    name: TargetName
    """The name by which `spec.notify` of an IdlePolicy and annotation `idlegpu.io/notify` name it."""
    kind: TargetKind
    """How messages get there."""
    url_file: Path
    """File that contains only the address: `https://…` of a webhook, any address of Apprise, such as `mailtos://…`."""
    key_file: Path | None = None
    """File with the key of a webhook's signature. None: it is not signed."""
    token_file: Path | None = None
    """File with a bearer token for a webhook."""
    ca_file: Path | None = None
    """PEM, of a webhook: certificate authorities of the server. None: those of the system."""
    owner_domains: tuple[str, ...] = ()
    """Domains of owners who are written to: an owner that is an address there gets mail by Apprise, in place of those
    in the address."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "TargetSettings":
        given = self.model_fields_set - {"name", "kind", "url_file"}
        if odd := sorted(given - target_kind(self.kind).TAKES):
            names = ", ".join(str(type(self).model_fields[each].alias) for each in odd)
            raise ValueError(f"target {self.name}: a target of kind {self.kind} has no {names}")
        return self


class RetrySettings(Section):
    base: Duration = timedelta(seconds=30)
    """Wait before the second attempt; doubled with each further one."""
    max: Duration = timedelta(minutes=30)
    """Longest wait between two attempts."""
    give_up_after: Duration = timedelta(hours=6)
    """No message is sent of what is older. Where a target is new, messages are sent of what happened within this
    time."""


class LinkSettings(Section):
    """Links in messages by which owners keep, exclude or resume a workload."""

    base_url: str = Field(pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$")
    """Address at which owners' browsers reach the path /answer of `http.address`."""
    key_file: Path
    """File of keys, each with 32 characters or more on a line of its own: the last one signs, all are accepted."""
    valid_for: Duration = timedelta(hours=24)
    """How long a link is good for one use."""
    keep_for: Duration = timedelta(hours=4)
    """How long a workload is kept by a link."""


class NotificationSettings(Section):
    """How owners are notified; see notifications.md. Off without targets."""

    gone: ClassVar[Mapping[str, str]] = {
        "digest": "run `idle-gpu-scaler report --notify TARGET` every week, by report.schedule of the chart or a "
        "CronJob of your own"
    }

    targets: tuple[TargetSettings, ...] = ()
    """The receivers of messages."""
    default_targets: tuple[TargetName, ...] = ()
    """Targets of workloads whose policy and annotation name none. Empty: no message is sent about them."""
    owner_labels: tuple[str, ...] = ()
    """Labels that name the owner, of the ScaledObject, the ScalableWorkload or the namespace; the first one first.
    Annotation `idlegpu.io/owner` comes before them, and without any the namespace is the owner."""
    group_for: Duration = timedelta(minutes=1)
    """How long a message waits for others to the same owner."""
    per_owner_per_hour: int = Field(default=6, ge=1)
    """Maximum number of messages to an owner by one target within an hour. What exceeds it joins the next one."""
    timeout: Duration = timedelta(seconds=10)
    """Longest time of one attempt."""
    retry: RetrySettings = RetrySettings()
    links: LinkSettings | None = None
    """The links of messages. None: they have none, and the path /answer does not exist."""

    @field_validator("targets")
    @classmethod
    def _each_once(cls, targets: tuple[TargetSettings, ...]) -> tuple[TargetSettings, ...]:
        names = [each.name for each in targets]
        if several := twice(names):
            raise ValueError(f"two targets are named {several}")
        if "none" in names:
            raise ValueError("no target may be named none: that is how an annotation turns notifications off")
        return targets

    @model_validator(mode="after")
    def _known(self) -> "NotificationSettings":
        unknown = sorted({*self.default_targets} - {each.name for each in self.targets})
        if unknown:
            raise ValueError(f"defaultTargets: {', '.join(unknown)} is no target")
        return self

    def configs(self) -> list[TargetConfig]:
        return [each.into(TargetConfig) for each in self.targets]

    def limits(self) -> DeliveryLimits:
        return self.into(
            DeliveryLimits,
            retry_base=self.retry.base,
            retry_max=self.retry.max,
            give_up_after=self.retry.give_up_after,
        )

    def notify_targets(self) -> NotifyTargets:
        return NotifyTargets(names=tuple(each.name for each in self.targets), default=self.default_targets)
