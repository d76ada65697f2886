"""A small Kubernetes API over HTTP, in memory: what controllers and kubectl rely on.

It is held to a real kube-apiserver by `tests/contract`, which passes against both. The way of a request:

    server → requests → verbs: writes (lifecycle, admission, patches, apply) → schema → storage (store, watch, listing)

What it leaves out on purpose, and how that shows:

* admission webhooks, quotas, API priority: nothing is refused for them;
* of RBAC, privilege escalation prevention and aggregated roles. A request without a token may do everything, one with
  the token of a ServiceAccount what roles grant it, and access reviews say so;
* field ownership: server-side apply merges its configuration in, without conflicts, and removes nothing;
* JSON patches and strategic merge patches (415), and deletion that waits for dependents or orphans them (422);
* deletion of collections (405), generated names, and watches with `sendInitialEvents`;
* warnings about unknown fields: they are dropped, or refused where the client asks for it (`fieldValidation=Strict`);
* validation of built-in kinds: a Deployment without a selector is taken, `spec.nodeName` can be set; CustomResource-
  Definitions are not checked either;
* schedulers, kubelets and workload controllers: the simulated cluster brings its own. Only what every cluster has is
  here: garbage collection, namespace contents, the default service account;
* metadata alone (`PartialObjectMetadata`), and label selectors with `<` and `>`;
* protobuf: `kubectl create deployment` and its like send it and get 415; `kubectl create -f` and `apply` do not;
* conversion webhooks: all versions of a custom resource hold the same object (strategy None);
* CEL functions that only Kubernetes has: such rules are listed in `Version.unchecked_rules` and not evaluated;
  nor is any rule where the extra `rules` is not installed.
"""

from scaler_sandbox.kubeapi.api import KubeApi
from scaler_sandbox.kubeapi.errors import ApiError
from scaler_sandbox.kubeapi.faults import Faults

__all__ = ["ApiError", "Faults", "KubeApi"]
