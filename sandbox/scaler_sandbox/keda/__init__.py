"""KEDA's part of the story: a poller of external scalers that asks in KEDA's order and scales by KEDA's rules.

It follows KEDA 2.18. Not simulated: the HorizontalPodAutoscaler (so nothing happens above one replica by metric
values), trigger types other than external and external-push, authentication, TLS, fallback and scaling modifiers. A
ScaledObject that asks for one of them is refused loudly instead of being treated differently from how KEDA would.
"""

from scaler_sandbox.keda.controller import Keda, KedaTiming

__all__ = ["Keda", "KedaTiming"]
