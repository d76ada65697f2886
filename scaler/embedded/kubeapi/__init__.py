"""A small, honest Kubernetes API over HTTP, in memory: what controllers and kubectl rely on, and nothing that lies.

It is held to a real kube-apiserver by `tests/contract`, which passes against both. The way of a request:

    server → routing, parameters → cluster: lifecycle → admission → ownership | apply → store → watch, listing
                                             (shape)    (schema, CEL)  (who owns what)

What it leaves out on purpose, and how that shows:

* admission webhooks, quotas, API priority: nothing is refused for them;
* of RBAC, that nobody grants more than they may do themselves, and aggregated roles. Whoever comes without a token may
  do everything, a ServiceAccount with its token what roles grant it, and access reviews say so;
* validation of built-in kinds beyond their shape: a Deployment without a selector is taken, `spec.nodeName` can be set;
* schedulers, kubelets and workload controllers: the simulated cluster brings its own. Only what every cluster has is
  here: garbage collection, namespace contents, the default service account;
* protobuf: `kubectl create deployment` and its like send it and get 415; `kubectl create -f` and `apply` do not;
* conversion webhooks: all versions of a custom resource hold the same object (strategy None);
* CEL functions that only Kubernetes has: such rules are listed in `Version.unchecked_rules` and not evaluated.
"""

from scaler.embedded.kubeapi.api import KubeApi
from scaler.embedded.kubeapi.faults import Faults
from scaler.embedded.kubeapi.status import ApiError

__all__ = ["ApiError", "Faults", "KubeApi"]
