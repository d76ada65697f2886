"""Settings of the hooks by which the state of a workload is saved before it is suspended."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from scaler.app.settings.fields import NAME, Duration, Section
from scaler.suspension.hooks import HookConfig, HookKind
from scaler.webhook import Receiver

HookName = Annotated[str, Field(pattern=NAME, max_length=40)]
"""Part of the name of objects."""
_LONGEST = timedelta(hours=1)


class HookSettings(Section):
    name: HookName
    """The name by which `spec.beforeSuspend` of an IdlePolicy and `beforeSuspend` of a trigger name it."""
    kind: HookKind
    """`Webhook` or `Object`."""
    timeout: Duration = timedelta(minutes=5)
    """How long a run may take, at most 1h. It keeps workloads running, and plans waiting, for so long."""
    url_file: Path | None = None
    """File that contains only the address of a webhook."""
    key_file: Path | None = None
    """File with the key of a webhook's signature. None: it is not signed."""
    token_file: Path | None = None
    """File with a bearer token for a webhook."""
    ca_file: Path | None = None
    """PEM file with certificate authorities of a webhook's server. None: those of the system."""
    template_file: Path | None = None
    """File with the manifest of an object in YAML, in whose texts names such as `$name` are filled in."""
    condition: str = ""
    """Type of an object's condition that becomes True, or a field of its status that becomes true."""
    reason: str = ""
    """Reason that an object's condition has then. Empty: any."""
    failure_condition: str = ""
    """Condition or field, as in `condition`, that says that an object has failed."""

    @field_validator("timeout")
    @classmethod
    def _is_bounded(cls, timeout: timedelta) -> timedelta:
        if timeout > _LONGEST:
            raise ValueError("timeout: write at most '1h'")
        return timeout

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "HookSettings":
        of_webhook = self.url_file, self.key_file, self.token_file, self.ca_file
        of_object = self.template_file, self.condition, self.reason, self.failure_condition
        if self.kind is HookKind.WEBHOOK and (self.url_file is None or any(of_object)):
            raise ValueError(f"hook {self.name}: a Webhook needs urlFile, and has no templateFile and conditions")
        if self.kind is HookKind.OBJECT and (self.template_file is None or not self.condition or any(of_webhook)):
            raise ValueError(
                f"hook {self.name}: an Object needs templateFile and condition, and has no files of a webhook"
            )
        return self

    def config(self) -> HookConfig:
        return self.into(HookConfig, receiver=None if self.url_file is None else self.into(Receiver))
