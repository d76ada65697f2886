"""The objects of one run of the suite: queues, a check with its policy, gangs. All have the run's label."""

from collections.abc import Sequence
from typing import Any

from scaler_sandbox import job_manifests as made
from scaler_sandbox import packaged
from scaler_sandbox.kinds import WORKLOAD_PRIORITY_CLASS
from scaler_sandbox.kubelet.pod_lifecycle import TERMINATION

from deploy import helm_chart
from scaler.kube.objects.resources import DEPLOYMENT, IDLE_POLICY, RAY_CLUSTER, RAY_JOB
from scaler.kube.scheduling import Taint

Json = dict[str, Any]

RUN_LABEL = "e2e.idlegpu.io/run"
"""On every object of the suite, and on the nodes of its pods. What has it may be deleted."""
NODE_TAINT = Taint(key="e2e.idlegpu.io/node", value="fake", effect="NoSchedule")
"""Of the suite's nodes: no other pod is scheduled there."""
QUEUE = "gpus"
"""The LocalQueue."""


def namespace(run: str) -> Json:
    return labelled(run, made.namespace(run))


def account(run: str) -> list[Json]:
    """The program's ServiceAccount and roles as they are installed, under the run's names and in its namespace."""
    return [_renamed(run, body, run) for body in packaged.account() if body["kind"] != "Namespace"]


def dispatcher_roles(run: str, kueue_namespace: str) -> list[Json]:
    """What a hub of MultiKueue adds to these roles, as the chart does it."""
    ours = helm_chart.objects({"rbac": {"dispatcher": True}}, name=packaged.SERVICE_ACCOUNT)
    return [_renamed(run, body, kueue_namespace) for body in ours if body["metadata"]["name"].endswith(_OF_A_HUB)]


_OF_A_HUB = ("-dispatcher", "-kubeconfigs")


def _renamed(run: str, body: Json, namespace: str) -> Json:
    def of(name: str) -> str:
        return f"{run}-{name}"

    scope = {} if body["kind"].startswith("Cluster") else {"namespace": namespace}
    renamed = {**body, "metadata": {"name": of(body["metadata"]["name"]), "labels": {RUN_LABEL: run}, **scope}}
    if "roleRef" in body:
        renamed["roleRef"] = body["roleRef"] | {"name": of(body["roleRef"]["name"])}
        renamed["subjects"] = [each | {"name": of(each["name"]), "namespace": run} for each in body["subjects"]]
    return renamed


def service_account(run: str) -> str:
    """Its name."""
    return f"{run}-{packaged.SERVICE_ACCOUNT}"


def labelled(run: str, body: Json) -> Json:
    return {**body, "metadata": {**body["metadata"], "labels": {RUN_LABEL: run} | body["metadata"]["labels"]}}


def queues(run: str, *, gpus: int, checks: Sequence[str], preempts: bool, strategy: str) -> list[Json]:
    """A flavor for the run's own nodes, a ClusterQueue with that quota of it, and a LocalQueue."""
    spec = {
        "queueingStrategy": strategy,
        "namespaceSelector": {"matchLabels": {RUN_LABEL: run}},
        "preemption": {"withinClusterQueue": "LowerPriority" if preempts else "Never"},
    }
    bodies = [
        made.flavor(run, nodeLabels={RUN_LABEL: run}),
        made.cluster_queue(run, gpus, flavor=run, checks=checks, **spec),
        made.local_queue(QUEUE, run, run),
    ]
    return [labelled(run, each) for each in bodies]


def check(run: str) -> Json:
    """Our AdmissionCheck. Its parameters are the run's ReclaimPolicy, which need not be there."""
    return labelled(run, made.admission_check(run, run))


def policy(run: str, spec: Json) -> Json:
    return labelled(run, made.reclaim_policy(run, spec))


def priority(run: str, value: int) -> Json:
    """The one WorkloadPriorityClass of the run; Workloads without it have 0."""
    return labelled(run, made.manifest(WORKLOAD_PRIORITY_CLASS, run, value=value))


def idle_policy(run: str, spec: Json) -> Json:
    return labelled(run, made.manifest(IDLE_POLICY, run, run, spec=spec))


def _pod_template(run: str, labels: Json | None = None) -> Json:
    """Of a pod with one GPU, on the run's nodes."""
    amount = {made.GPU: "1"}
    container = {"name": "main", "image": "python:3", "resources": {"requests": amount, "limits": amount}}
    spec = {"containers": [container], "nodeSelector": {RUN_LABEL: run}, "tolerations": _TOLERATIONS}
    return {"metadata": {"labels": labels or {}, "annotations": {TERMINATION: "1s"}}, "spec": spec}


def deployment(run: str, name: str) -> Json:
    """Of one pod with a GPU, without Kueue."""
    labels = {"app": name}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": _pod_template(run, labels)}
    return labelled(run, made.manifest(DEPLOYMENT, name, run, spec=spec))


def generated_job(run: str, prefix: str) -> Json:
    """The Job of one pod with a GPU, with a name that the API generates."""
    return _generated(job(run, "any", pods=1, gpus=1), prefix)


def ray_cluster(run: str, name: str) -> Json:
    """A head and a worker, each with a GPU."""
    return labelled(run, made.manifest(RAY_CLUSTER, name, run, labels=_QUEUED, spec=_ray_spec(run)))


def generated_ray_job(run: str, prefix: str) -> Json:
    spec = {
        "entrypoint": "python -c 'import ray'",
        "submissionMode": "HTTPMode",
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": _ray_spec(run),
    }
    return _generated(labelled(run, made.manifest(RAY_JOB, "any", run, labels=_QUEUED, spec=spec)), prefix)


def _ray_spec(run: str) -> Json:
    group = {"groupName": "workers", "replicas": 1, "minReplicas": 1, "maxReplicas": 1, "rayStartParams": {}}
    return {
        "headGroupSpec": {"rayStartParams": {}, "template": _pod_template(run)},
        "workerGroupSpecs": [{**group, "template": _pod_template(run)}],
    }


def _generated(body: Json, prefix: str) -> Json:
    metadata = {key: value for key, value in body["metadata"].items() if key != "name"}
    return {**body, "metadata": {**metadata, "generateName": prefix}}


_QUEUED = {"kueue.x-k8s.io/queue-name": QUEUE}
_TOLERATIONS = [{"key": NODE_TAINT.key, "operator": "Exists", "effect": NODE_TAINT.effect}]


def job(run: str, name: str, *, pods: int, gpus: int, is_preferred: bool = False, ends_in: str = "1s") -> Json:
    """A gang of so many pods of so many GPUs each. Once it is deleted, a pod takes `ends_in` to end."""
    body = made.job(
        name,
        run,
        QUEUE,
        gpus=gpus,
        pods=pods,
        annotations={TERMINATION: ends_in},
        pod={"tolerations": _TOLERATIONS},
        backoffLimit=100,
    )
    if is_preferred:
        body["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = run
    return labelled(run, body)


def scaling(run: str, name: str, scaler_address: str, **more: str) -> list[Json]:
    """A ScalableWorkload and a ScaledObject with short times: a plan may take the Job once its GPUs are idle.

    `more` is trigger metadata.
    """
    trigger = {"reclaim": "OnPressure", "idleAfter": "10m", "idleAfterUnderPressure": "3s", "warmUp": "0s", **more}
    return [labelled(run, each) for each in made.scaling(name, run, scaler_address, trigger, pollingInterval=1)]
