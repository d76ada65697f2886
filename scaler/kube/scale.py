"""The scale subresource: how many replicas of whatever it is are asked for, and by which labels its pods are found."""

from dataclasses import dataclass

from scaler.errors import KubeError
from scaler.kube.decoding import UNREADABLE, decode
from scaler.kube.objects import Struct
from scaler.kube.resources import Resource
from scaler.kube.transport import KubeTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An object's scale. Source: autoscaling/v1."""

    replicas: int
    """Asked for."""
    observed_replicas: int
    selector: str
    """A label selector in its written form, `app=web,tier!=cache`; may be empty."""


class _Spec(Struct, frozen=True):
    replicas: int = 0
    """The API omits zero."""


class _Status(Struct, frozen=True):
    replicas: int = 0
    selector: str = ""


class _Scale(Struct, frozen=True):
    spec: _Spec = _Spec()
    status: _Status = _Status()


async def read_scale(transport: KubeTransport, resource: Resource, namespace: str, name: str) -> Scale:
    """The scale of the object. Raises: KubeError; 404 where there is no such object or its kind has no scale."""
    path = resource.path(namespace, name, "scale")
    try:
        scale = decode(_Scale, await transport.get(path))
    except UNREADABLE as error:
        raise KubeError(f"get {path}: the answer is not a Scale: {error}", reason="NotAScale") from error
    return Scale(replicas=scale.spec.replicas, observed_replicas=scale.status.replicas, selector=scale.status.selector)
