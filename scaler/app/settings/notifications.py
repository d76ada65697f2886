"""Settings of what owners are told: targets, owners, limits, links and the weekly digest."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from scaler.app.settings.fields import Duration, Section
from scaler.decision.workloads import NotifyTargets
from scaler.idleness.hours import Weekday, read_zone
from scaler.notifications.digest import DigestConfig
from scaler.notifications.schedule import DeliveryLimits
from scaler.notifications.senders import TargetConfig, TargetKind
from scaler.notifications.workloads import OwnerRules

TargetName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
"""Part of the name of an annotation."""


class TargetSettings(Section):
    name: TargetName
    """As `spec.notify` of an IdlePolicy and annotation `idlegpu.io/notify` name it."""
    kind: TargetKind
    """How messages get there."""
    url_file: Path
    """File that contains only the address: `https://…` of a webhook or Alertmanager, `smtp://`, `smtps://` or
    `smtp+starttls://` of a mail server, any address of Apprise."""
    key_file: Path | None = None
    """Of a webhook: file with the key of the signature. None: it is not signed."""
    token_file: Path | None = None
    """Of a webhook or Alertmanager: file with a bearer token."""
    ca_file: Path | None = None
    """PEM: certificate authorities of the server, except with Apprise. None: those of the system."""
    sender: str = Field(default="", alias="from")
    """Of mail: its From address."""
    recipients: tuple[str, ...] = Field(default=(), alias="to")
    """Of mail: who gets what is owned by somebody without an allowed address."""
    owner_domains: tuple[str, ...] = ()
    """Of mail: an owner that is an address of one of these domains is written to."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "TargetSettings":
        of_mail = self.sender or self.recipients or self.owner_domains
        if self.kind is TargetKind.MAIL and not (self.sender and (self.recipients or self.owner_domains)):
            raise ValueError(f"target {self.name}: mail needs from, and to or ownerDomains")
        if self.kind is not TargetKind.MAIL and of_mail:
            raise ValueError(f"target {self.name}: from, to and ownerDomains are of mail only")
        if self.key_file is not None and self.kind is not TargetKind.WEBHOOK:
            raise ValueError(f"target {self.name}: keyFile is of a webhook only")
        if self.token_file is not None and self.kind not in (TargetKind.WEBHOOK, TargetKind.ALERTMANAGER):
            raise ValueError(f"target {self.name}: tokenFile is of a webhook or Alertmanager only")
        return self


class RetrySettings(Section):
    base: Duration = timedelta(seconds=30)
    """Wait before the second attempt; doubled with each further one."""
    max: Duration = timedelta(minutes=30)
    """Longest wait between two attempts."""
    give_up_after: Duration = timedelta(hours=6)
    """What is older is not told any more. Where a target is new, what happened within this time is still told."""


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


class DigestSettings(Section):
    """A message a week to each team (namespace) about its GPU-hours held idle and given back; needs `prometheus.url`,
    and that this Prometheus scrapes the scaler.
    """

    weekday: Weekday = Weekday.MON
    """Day of the digest."""
    hour: int = Field(default=9, ge=0, le=23)
    """Hour of the day."""
    time_zone: str
    """IANA name of the time zone of day and hour, such as `Europe/Berlin`."""
    targets: tuple[TargetName, ...] = Field(min_length=1)
    """Targets that get it. Not Alertmanager."""

    @field_validator("time_zone")
    @classmethod
    def _is_a_zone(cls, name: str) -> str:
        read_zone(name)
        return name

    def config(self) -> DigestConfig:
        return self.into(DigestConfig, weekday=[*Weekday].index(self.weekday), zone=read_zone(self.time_zone))


class NotificationSettings(Section):
    """What owners are told; see notifications.md. Off without targets."""

    targets: tuple[TargetSettings, ...] = ()
    """Where messages go."""
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
    """Of one attempt."""
    retry: RetrySettings = RetrySettings()
    links: LinkSettings | None = None
    """None: messages have no links, and the path /answer does not exist."""
    digest: DigestSettings | None = None
    """None: there is no weekly digest."""

    @field_validator("targets")
    @classmethod
    def _each_once(cls, targets: tuple[TargetSettings, ...]) -> tuple[TargetSettings, ...]:
        names = [each.name for each in targets]
        twice = sorted({each for each in names if names.count(each) > 1})
        if twice:
            raise ValueError(f"two targets are named {', '.join(twice)}")
        if "none" in names:
            raise ValueError("no target may be named none: that is how an annotation turns notifications off")
        return targets

    @model_validator(mode="after")
    def _known(self) -> "NotificationSettings":
        unknown = sorted({*self.default_targets} - {each.name for each in self.targets})
        if unknown:
            raise ValueError(f"defaultTargets: {', '.join(unknown)} is no target")
        told = {each.name for each in self.targets if each.kind is not TargetKind.ALERTMANAGER}
        unknown = sorted({*self.digest.targets} - told) if self.digest is not None else []
        if unknown:
            raise ValueError(f"digest.targets: {', '.join(unknown)} is no target that gets messages")
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

    def owner_rules(self) -> OwnerRules:
        return OwnerRules(labels=self.owner_labels, targets=self._notify_targets(*TargetKind))

    def told_by_messages(self) -> NotifyTargets:
        """Without Alertmanager: it does not say whether it tells anybody, and silences what it is told to."""
        return self._notify_targets(*(each for each in TargetKind if each is not TargetKind.ALERTMANAGER))

    def _notify_targets(self, *kinds: TargetKind) -> NotifyTargets:
        names = tuple(each.name for each in self.targets if each.kind in kinds)
        return NotifyTargets(names=names, default=self.default_targets)
