"""The demo's story runs with the roles as they are installed: nothing is missing, and nothing is unused."""

import contextlib
import re
import time
from contextlib import AsyncExitStack

import pytest
from scaler_sandbox import demo
from scaler_sandbox.job_manifests import deployment, job, manifest, scaled_object
from scaler_sandbox.kinds import Json
from scaler_sandbox.packaged import NAMESPACE, SERVICE_ACCOUNT, account
from scaler_sandbox.sandbox import Sandbox
from scaler_sandbox.stories.gang_story import NAMESPACE as TEAMS
from scaler_sandbox.stories.provisioning import ProvisioningStory
from scaler_sandbox.timeline import JsonTimeline
from small_cluster import until

from scaler.doctor.permissions import REQUIRED_RULES, RuleUser, attributes_of
from scaler.kube.objects.resources import (
    CLUSTER_IDLE_POLICY,
    CLUSTER_OFFER,
    DEPLOYMENT,
    IDLE_POLICY,
    JOB,
    JOB_KINDS,
    LEADER_WORKER_SET,
    LOCAL_QUEUE,
    PROFILE_DECISION,
    REPLICA_SET,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    STATEFUL_SET,
    WORKLOAD,
    Resource,
)
from scaler.targets.workloads import KEEP_FOR, WAKE_ANNOTATION

Granted = tuple[str, str, str]
"""Verb, group, resource with its subresource."""

SELDOM = {
    # Here is no Notebook: tests/app/test_process_switches.py.
    *(
        (ask.verb, ask.group, ask.resource)
        for rule in REQUIRED_RULES
        if rule.part is RuleUser.SWITCHES
        for ask in attributes_of(rule, targets=frozenset(), lease_namespace=NAMESPACE)
    ),
    # Nor a job of another kind, nor a policy that KEDA scales for: tests/attachment, tests/test_readme.py.
    *((verb, each.group, each.plural) for each in JOB_KINDS if each != JOB for verb in ("list", "watch")),
    *((verb, LEADER_WORKER_SET.group, LEADER_WORKER_SET.plural) for verb in ("list", "watch")),
    *((verb, SCALED_OBJECT.group, SCALED_OBJECT.plural) for verb in ("create", "delete")),
    ("get", LEADER_WORKER_SET.group, "leaderworkersets/scale"),
    # Nor a target of a kind whose owned pods are looked for: tests/targets/test_scale_subresources.py.
    *((verb, REPLICA_SET.group, REPLICA_SET.plural) for verb in ("list", "watch")),
    # Here is no hub: the story below.
    ("patch", CLUSTER_OFFER.group, "clusteroffers/status"),
    # Where the process died between making a PodTemplate and its request: tests/loops, restarts at every write.
    ("get", "", "podtemplates"),
    # An Event that is said again within minutes is counted up: tests/kube/objects/test_events.py.
    ("patch", "", "events"),
}
"""Calls that this story has no occasion for, and where they are seen."""


def granted() -> set[Granted]:
    """What roles allow the account."""
    bodies = {(each["kind"], each["metadata"]["name"]): each for each in account()}
    bound = [bodies[each["roleRef"]["kind"], each["roleRef"]["name"]] for each in bodies.values() if "roleRef" in each]
    return {
        (verb, group, resource)
        for role in bound
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def scaled(kind: Resource, address: str) -> list[Json]:
    """A workload that KEDA scales without Kueue."""
    name, trigger = f"notebook-{kind.kind.lower()}", {"idleAfter": "1h", "warmUp": "0s", "keepsPerWeek": "3"}
    return [
        deployment(name, "default", kind=kind, replicas=0),
        scaled_object(name, "default", kind, address, trigger),
    ]


async def ask(world: Sandbox, resource: Resource, key: tuple[str, str], annotation: str, value: str) -> None:
    """As an owner asks, and wait until that was heard."""
    await world.patch(resource, *key, {"metadata": {"annotations": {annotation: value}}})

    async def is_heard() -> bool:
        found = await world.read(resource, *key)
        return annotation not in found["metadata"].get("annotations", {})

    await until(is_heard)


async def follow_policies(world: Sandbox) -> None:
    """A job is attached by a policy, and detached."""
    chosen = {"selector": {"labels": {"matchLabels": {"attached": "yes"}}}, "actuator": "Direct"}
    nothing = {"selector": {"kinds": ["None"]}}
    await world.apply(
        [manifest(CLUSTER_IDLE_POLICY, "none", spec=nothing), manifest(IDLE_POLICY, "a", TEAMS, spec=chosen)]
    )
    queue = next(iter(await world.read_all(LOCAL_QUEUE, TEAMS)))["metadata"]["name"]
    attached = job("attached", TEAMS, queue, gpus=1)
    attached["metadata"]["labels"]["attached"] = "yes"
    await world.apply(attached)
    name = "job-attached"
    await until(lambda: (world.find(SCALABLE_WORKLOAD, TEAMS, name) or {}).get("status", {}).get("phase"))
    await world.delete(IDLE_POLICY, TEAMS, "a")
    await until(lambda: world.find(SCALABLE_WORKLOAD, TEAMS, name) is None)


@pytest.mark.slow
async def test_the_story_needs_all_that_the_roles_grant_and_no_more(capsys) -> None:
    async with AsyncExitStack() as stack:
        stage = await demo.start_act(stack, demo.ACTS["third"], "dcgm")
        done = stage.world.api.permissions.done
        user = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"
        for kind in (DEPLOYMENT, STATEFUL_SET):
            await stage.world.apply(scaled(kind, stage.scaler_address))
        story = ProvisioningStory(
            world=stage.world, scaler_address=stage.scaler_address, tell=JsonTimeline().tell, began=time.monotonic()
        )
        outcome = await story.run()
        assert outcome.ok, outcome.problem
        # Owners wake what was suspended, on the object that they know; one of them says it twice.
        first, second = sorted(story.victims)
        for resource, name in ((SCALED_OBJECT, first), (SCALABLE_WORKLOAD, second), (SCALABLE_WORKLOAD, second)):
            await ask(stage.world, resource, (TEAMS, name), WAKE_ANNOTATION, "true")
        # One that may be kept three times a week is kept.
        await ask(stage.world, SCALED_OBJECT, ("default", "notebook-deployment"), KEEP_FOR, "1h")
        await follow_policies(stage.world)
        # What was asked for on the gang's behalf goes with it.
        gang = stage.world.workload_of(JOB, TEAMS, story.gang)
        assert gang is not None
        await stage.world.patch(WORKLOAD, TEAMS, gang["metadata"]["name"], {"spec": {"active": False}})

        def used() -> set[Granted]:
            return {(each.verb, each.group, each.what) for each in done.get(user, ())}

        def unused() -> set[Granted]:
            return granted() - used() - SELDOM

        with contextlib.suppress(TimeoutError):
            await until(lambda: not unused())
        assert unused() == set()
        assert used() <= granted()
    # As a word: it may be in the number of a port as well.
    refused = [line for line in capsys.readouterr().err.splitlines() if re.search(r"\b403\b", line)]
    assert refused == []


@pytest.mark.slow
async def test_the_story_of_hub_and_workers_needs_all_that_the_dispatcher_is_granted_and_no_more(capsys) -> None:
    """And of a worker's kubeconfig on the hub, all that the example grants beyond what MultiKueue needs."""
    async with AsyncExitStack() as stack:
        act = demo.ACTS["fifth"]
        stage = await demo.start_act(stack, act, "dcgm")
        outcome = await act.story(stage, JsonTimeline().tell, time.monotonic()).run()
        assert outcome.ok, outcome.problem
        hub = stage.others["hub"].world
        assert calls(hub, f"{NAMESPACE}:{SERVICE_ACCOUNT}") >= {
            (verb, on.resource.group, str(on).partition(".")[0])
            for rule in REQUIRED_RULES
            if rule.part is RuleUser.DISPATCHER
            for on in rule.on
            if on.resource != PROFILE_DECISION  # is not served here: tests/multikueue/hub/dispatch/test_dispatcher.py
            for verb in rule.verbs
        }
        of_hub = calls(stage.world, "open-cluster-management-agent-addon:multikueue")
        verbs = {verb for verb, group, _ in of_hub if group == CLUSTER_OFFER.group}
        # It is read again after a conflict alone.
        assert {"create", "list", "watch", "patch"} <= verbs <= {"create", "get", "list", "watch", "patch"}
    assert [line for line in capsys.readouterr().err.splitlines() if re.search(r"\b403\b", line)] == []


def calls(world: Sandbox, account: str) -> set[Granted]:
    """What a ServiceAccount has done there."""
    done = world.api.permissions.done.get(f"system:serviceaccount:{account}", set())
    return {(each.verb, each.group, each.what) for each in done}
