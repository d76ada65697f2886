"""What the values of each label mean, whichever metric has it."""

LABELS = {
    "workload_namespace": "Namespace of the workload; of a gang that was given GPUs, its own. Those beyond "
    "`metrics.namespaces` are `(others)`.",
    "cluster_queue": "ClusterQueue where the workload holds or asks for quota; empty where Kueue does not manage it.",
    "model": "GPU model as the exporter names it, blanks written as `-`; empty where nothing names it.",
    "state": "Of GPUs: `Busy`, `Idle`, `HeldIdle`, `Unknown`, `WithoutMetrics`, `Starting`, `Ending` (see above). "
    "Of nodes: `Trusted`, `Distrusted`, `Silent`. Of queue keys: `Waiting`, `Failing`. "
    "Of ProvisioningRequests: `New`, `Accepted`, `Provisioned`, `Failed`, `BookingExpired`, `CapacityRevoked`.",
    "reason": "A reason in PascalCase, the same as in Events, conditions and `explain`.",
    "kind": "Kind of the scale target, such as `ScalableWorkload` or `Deployment`.",
    "name": "Name of the scale target.",
    "signal": "Name of a configured signal, such as `gr_engine_active`.",
    "currency": "`metrics.currency` of the settings.",
    "answer": "What KEDA gets: `active`, `inactive` or `error`.",
    "verdict": "`Idle`, `Busy` or `Unknown`; empty where the GPUs were not looked at.",
    "attributed": "`yes` for series that name a GPU and a pod, `no` for others.",
    "source": "`prometheus` or `dcgm`.",
    "query": "Name of the signal, `demand`, or `scrape`.",
    "outcome": "How it ended: `ok` or what went wrong. Of reallocated GPUs: `Admitted`, `Taken` or `Cancelled`.",
    "gpu_node": "A node on which GPUs are not trusted, the worst `metrics.nodes` of them.",
    "stage": "Of a gang that waits: `Quota` or `AdmissionCheck`. Of a hand-over: `Suspending` (granted until "
    "deactivated), `Releasing` (until the pods are gone), `Admitting` (until the gang is admitted).",
    "from_namespace": "Namespace of the workload that gave its GPUs up.",
    "through": "`Plan` where a plan took the GPUs for the gang, `Queue` where it was the next in the same cohort.",
    "budget": "Name of a budget of `reclaim.budgets`.",
    "limit": "`AtOnce` or `PerPeriod`.",
    "origin": "`reused` for nodes that were there before, `provisioned` for those that have come since.",
    "event": "`Created`, `Removed`, `Provisioned`, `Failed`, `BookingExpired` or `CapacityRevoked`.",
    "provisioning_class": "Name of the provisioning class.",
    "method": "RPC of the external scaler: `IsActive`, `GetMetricSpec`, `GetMetrics`, `StreamIsActive`.",
    "code": "gRPC status code.",
    "use": "`grpc` or `http` for the certificate that is served there, `grpc-clients` or `http-clients` for the "
    "authorities of its clients.",
    "verb": "Verb of the Kubernetes API.",
    "resource": "Resource of the Kubernetes API, with its subresource.",
    "status": "HTTP status code; 0 where there was no answer.",
    "version": "Version of the program.",
}
