"""What people ask for one workload: annotations of the ScaledObject that is meant, or its scale."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from app.cli.command import command, command_beside
from small_cluster import NAME

from scaler.kube.objects.core import decode
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.resources import JOB, SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.targets.records import record_body


@pytest.fixture
async def cluster(cluster):
    await cluster.wants()
    await cluster.is_scaled_by({})
    template = {"spec": {"containers": [{"name": "main", "image": "x:1"}], "restartPolicy": "Never"}}
    job = await cluster.create(JOB, {"metadata": {"name": "train-x7k2p"}, "spec": {"template": template}})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-x7k2p", "uid": job["metadata"]["uid"]}
    for name, target in (("job-train-x7k2p", "other"), ("mine", "twice"), ("yours", "twice")):
        owners = {"ownerReferences": [owner]} if name.startswith("job") else {}
        spec = {"scaleTargetRef": {"name": target}, "triggers": []}
        await cluster.create(SCALED_OBJECT, {"metadata": {"name": name, **owners}, "spec": spec})
    return cluster


async def annotations(cluster, name=NAME):
    return (await cluster.read(SCALED_OBJECT, name))["metadata"].get("annotations", {})


async def test_a_workload_is_kept_for_a_while(cluster):
    done = await command_beside("keep", f"demo/{NAME}", "--for", "4h", "--kubeconfig", str(cluster.kubeconfig))
    assert done.status == 0, done
    until = datetime.fromisoformat((await annotations(cluster))["idlegpu.io/keep-until"])
    assert abs(until - datetime.now(UTC) - timedelta(hours=4)) < timedelta(minutes=2)
    assert done.out == f"ScalableWorkload demo/{NAME} is not suspended before {until:%Y-%m-%dT%H:%M:%SZ}.\n"


async def test_who_keeps_a_workload_is_told_what_its_policy_limits(cluster):
    trigger = {"type": "external-push", "metadata": {"longestKeep": "8h", "keepsPerWeek": "3"}}
    await cluster.change(SCALED_OBJECT, NAME, {"spec": {"triggers": [trigger]}})
    done = await command_beside("keep", f"demo/{NAME}", "--for", "4h", "--kubeconfig", str(cluster.kubeconfig))
    assert done.out.endswith(
        "Z, for at most 8h from now on, at most 3 times within seven days, as its policy says.\n"
    ), done


async def test_a_workload_is_woken_by_the_name_of_its_job(cluster):
    done = await command_beside("wake", "demo/train-x7k2p", "--kubeconfig", str(cluster.kubeconfig))
    assert done.status == 0, done
    assert "idlegpu.io/wake" in await annotations(cluster, "job-train-x7k2p")
    assert not await annotations(cluster)


async def test_a_workload_is_asked_to_come_back_when_there_is_room(cluster):
    done = await command_beside("wake", f"demo/{NAME}", "--when-free", "--kubeconfig", str(cluster.kubeconfig))
    assert done.out == (
        f"ScalableWorkload demo/{NAME}, if it is suspended, comes back when its quota and nodes are free and no "
        "Workload waits for them.\n"
    ), done
    assert (await annotations(cluster))["idlegpu.io/wake"] == "WhenFree"


async def test_a_workload_is_excluded_and_no_longer(cluster):
    flags = ("--kubeconfig", str(cluster.kubeconfig))
    done = await command_beside("exclude", f"demo/{NAME}", *flags)
    assert done.out == f"ScalableWorkload demo/{NAME} is excluded until that is removed.\n"
    assert (await annotations(cluster))["idlegpu.io/exclude"] == "true"
    done = await command_beside("exclude", f"demo/{NAME}", "--until", "2099-01-01T00:00:00Z", *flags)
    assert done.out == f"ScalableWorkload demo/{NAME} is excluded until 2099-01-01T00:00:00Z.\n"
    assert (await annotations(cluster))["idlegpu.io/exclude"] == "2099-01-01T00:00:00Z"
    done = await command_beside("exclude", f"demo/{NAME}", "--remove", *flags)
    assert done.out == f"ScalableWorkload demo/{NAME} is not excluded any more.\n"
    assert "idlegpu.io/exclude" not in await annotations(cluster)


async def test_a_workload_is_suspended_at_once(cluster):
    done = await command_beside("suspend", f"demo/{NAME}", "--kubeconfig", str(cluster.kubeconfig))
    assert done.status == 0, done
    assert done.out == f"ScalableWorkload demo/{NAME} is scaled to 0. It comes back when it is woken.\n"
    assert (await cluster.scalable())["spec"]["replicas"] == 0


async def test_the_history_of_a_workload_is_shown(cluster):
    flags = ("--kubeconfig", str(cluster.kubeconfig))
    done = await command_beside("history", f"demo/{NAME}", *flags)
    assert done.out == f"ScalableWorkload demo/{NAME}: nothing has been recorded yet.\n"
    lines = [
        {"at": "2026-12-01T12:00:00Z", "state": "Idle", "reason": "IdleNotLongEnough", "message": "not yet"},
        {"at": "2026-12-01T12:20:00Z", "state": "Kept", "reason": "Kept", "message": "kept", "by": "anna"},
    ]
    await cluster.change(SCALABLE_WORKLOAD, NAME, {"status": {"state": "Kept", "history": lines}}, "status")
    mine = decode(ScaledObject, json.dumps(await cluster.read(SCALED_OBJECT, "mine")).encode())
    record = record_body(mine)
    await cluster.create(SCALABLE_WORKLOAD, {**record, "status": {"history": lines[:1]}})
    done = await command_beside("history", f"demo/{NAME}", *flags)
    assert done.status == 0, done
    words = " ".join(done.out.split())
    assert "2026-12-01T12:00:00Z Idle IdleNotLongEnough not yet 2026-12-01T12:20:00Z Kept Kept anna kept" in words
    done = await command_beside("history", "demo/mine", "--json", *flags)
    assert done.json["history"] == lines[:1]
    use = {"at": "2026-12-01T12:20:00Z", "until": "2026-12-01T16:20:00Z", "on": "ScaledObject mine", "by": "anna"}
    await cluster.annotate(SCALED_OBJECT, "mine", "idlegpu.io/keeps", json.dumps([use]))
    done = await command_beside("history", "demo/mine", *flags)
    words = " ".join(done.out.split())
    assert words.endswith("KEPT AT UNTIL ASKED BY ON 2026-12-01T12:20:00Z 2026-12-01T16:20:00Z anna ScaledObject mine")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nobody", "no ScaledObject scales demo/nobody; in namespace demo there are: first-raycluster, job-train"),
        ("twice", "several ScaledObjects scale something named twice: mine, yours; name one of them"),
    ],
)
async def test_a_workload_that_is_not_one_is_an_error(cluster, name, problem):
    done = await command_beside("wake", f"demo/{name}", "--kubeconfig", str(cluster.kubeconfig))
    assert done.status == 2
    assert problem in done.err


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ((), "say how long: --for 4h, or --until"),
        (("--for", "4h", "--until", "2099-01-01T00:00:00Z"), "say how long"),
        (("--for", "4"), "--for: '4' is not a duration; write '4s'"),
        (("--until", "2099-01-01"), "has no zone"),
        (("--until", "2020-01-01T00:00:00Z"), "is over"),
        (("--until", "tomorrow"), "--until: 'tomorrow' is not a time; write for example"),
    ],
)
def test_a_time_that_cannot_be_kept_is_an_error(given, problem):
    done = command("keep", "demo/one", *given)
    assert done.status == 2
    assert problem in done.err
