"""Who owns a workload?

| the owner, from above                                                      |
|----------------------------------------------------------------------------|
| annotation `idlegpu.io/owner` of the ScaledObject, of the ScalableWorkload |
| the first label of the settings' list that one of the two has              |
| the same annotation, then the same labels, of the namespace                |
| the name of the namespace                                                  |

Owners stand in headers, in others' chats and in labels of metrics: what tenants write is an owner only if it is a name
or an address.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.kueue_queues import Namespace
from scaler.kube.reflector import Reflector

OWNER = "idlegpu.io/owner"
_OWNER = re.compile(r"[\w.+@:/-][\w.+@:/ -]{0,126}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    labels: tuple[str, ...] = ()
    """Labels that name the owner, the first one first."""
    namespaces: Reflector[Namespace] | None = None
    """The namespaces; None where they may not be read."""

    def of(self, *objects: ObjectMeta) -> str:
        """The owner of the workload that these objects, of one namespace, are about."""
        return self._named(objects) or self.of_namespace(objects[0].namespace)

    def of_namespace(self, name: str) -> str:
        found = self.namespace(name)
        return self._named([found.metadata] if found is not None else []) or name

    def namespace(self, name: str) -> Namespace | None:
        return self.namespaces.get("", name) if self.namespaces is not None else None

    def _named(self, objects: Sequence[ObjectMeta]) -> str:
        """Empty where none is."""
        named = [each.annotations.get(OWNER, "") for each in objects]
        named += [each.labels.get(label, "") for label in self.labels for each in objects]
        return next((name.strip() for name in named if _OWNER.fullmatch(name.strip())), "")
