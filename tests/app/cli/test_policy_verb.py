"""`policy test`: what policies would do, in a cluster with a gang that is idle and a Deployment."""

import json

import pytest
import yaml
from app.cli.command import command, command_beside
from attachment.test_attached_jobs import DEPLOYMENT, IDLE_POLICY, SCALED_OBJECT, apply, gang
from http_stub import HttpStub
from running_scaler import prometheus, settings_document
from small_cluster import NAME


def written(tmp_path, *policies):
    file = tmp_path / "policies.yaml"
    file.write_text(yaml.safe_dump_all(policies), encoding="utf-8")
    return str(file)


def policy(name="research", **spec):
    return {
        "apiVersion": "idlegpu.io/v1alpha1",
        "kind": "IdlePolicy",
        "metadata": {"namespace": "demo", "name": name},
        "spec": spec,
    }


@pytest.fixture
async def cluster(cluster):
    await gang(cluster)
    container = {"name": "main", "image": "x:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    await cluster.create(DEPLOYMENT, {"metadata": {"name": "web"}, "spec": spec})
    return cluster


def settings(cluster, tmp_path, url=""):
    document = settings_document(cluster.kubeconfig, "") | {"prometheus": {"url": url} if url else {}, "dcgm": {}}
    (tmp_path / "settings.yaml").write_text(json.dumps(document), encoding="utf-8")
    return ["--config", str(tmp_path / "settings.yaml")]


@pytest.mark.parametrize(
    ("busy", "spec", "verdict", "answer", "now"),
    [
        (0.9, {"mode": "Enforce"}, "Busy", "active", "work seen within the last 20s"),
        (0.0, {"mode": "Enforce"}, "Idle", "inactive", "every required GPU stayed below 1 % for 20s"),
    ],
)
async def test_it_shows_who_would_follow_and_what_would_be_decided_at_once(
    cluster, tmp_path, busy, spec, verdict, answer, now
):
    file = written(tmp_path, policy(**{"idleAfter": "20s", "warmUp": "0s", **spec}))
    with HttpStub(prometheus(busy=busy)) as stub:
        done = await command_beside("policy", "test", "-f", file, *settings(cluster, tmp_path, stub.url), "--json")
    assert done.status == 0, done
    web, ray = done.json["jobs"]
    assert (web["kind"], web["change"], web["words"], web["verdict"]) == (
        "Deployment",
        "Problem",
        "it has 3 replicas; only what has one is scaled between 1 and 0",
        None,
    )
    assert (ray["name"], ray["change"], ray["policy"]) == (NAME, "Attached", "IdlePolicy/research")
    assert (ray["verdict"], ray["answer"]) == (verdict, answer), ray["now"]
    assert now in ray["now"]
    assert not await cluster.all(SCALED_OBJECT)


async def test_the_policies_of_a_folder_are_tried_together(cluster, tmp_path):
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "research.yaml").write_text(yaml.safe_dump(policy(selector={"kinds": ["Ray*"]})), encoding="utf-8")
    (folder / "README.md").write_text("no policy", encoding="utf-8")
    done = await command_beside("policy", "test", "-f", str(folder), *settings(cluster, tmp_path), "--json")
    assert done.status == 0, done
    assert [each["policy"] for each in done.json["policies"]] == ["IdlePolicy/research"]


def test_a_file_that_is_not_there_is_named(tmp_path):
    done = command("policy", "test", "-f", str(tmp_path / "nothing.yaml"))
    assert done.status == 2
    assert f"error: {tmp_path / 'nothing.yaml'}: No such file or directory" in done.err


async def test_without_keda_it_shows_what_is_made_and_what_needs_keda(cluster, tmp_path):
    await cluster.change(DEPLOYMENT, "web", {"spec": {"replicas": 1}})
    file = written(tmp_path, policy(actuator="Direct", idleAfter="20s", warmUp="0s", mode="Enforce"))
    with HttpStub(prometheus(busy=0.0)) as stub:
        done = await command_beside("policy", "test", "-f", file, *settings(cluster, tmp_path, stub.url), "--json")
    web, ray = done.json["jobs"]
    assert (web["change"], web["words"]) == (
        "Problem",
        "actuator Direct scales no Deployment, which has replicas of its own: it needs KEDA",
    )
    assert (ray["change"], ray["words"], ray["answer"]) == ("Attached", "ScalableWorkload", "inactive")
    assert {"field": "actuator", "from": None, "to": "Direct"} in ray["differs"]


async def test_an_annotation_of_what_is_attached_already_counts(cluster, tmp_path):
    annotations = {"idlegpu.io/keep-until": "2999-01-01T00:00:00Z"}
    metadata = {"name": f"raycluster-{NAME}", "labels": {"idlegpu.io/policy-kind": "IdlePolicy"}}
    reference = {"apiVersion": "idlegpu.io/v1alpha1", "kind": "ScalableWorkload", "name": metadata["name"]}
    await cluster.create(
        SCALED_OBJECT,
        {"metadata": metadata | {"annotations": annotations}, "spec": {"scaleTargetRef": reference, "triggers": []}},
    )
    file = written(tmp_path, policy(mode="Enforce", idleAfter="20s", warmUp="0s"))
    with HttpStub(prometheus(busy=0.0)) as stub:
        done = await command_beside("policy", "test", "-f", file, *settings(cluster, tmp_path, stub.url), "--json")
    [_, ray] = done.json["jobs"]
    assert (ray["answer"], ray["reason"]) == ("active", "Kept")


async def test_without_a_metrics_source_it_says_who_would_follow(cluster, tmp_path):
    file = written(tmp_path, policy(selector={"kinds": ["Ray*"]}, idleAfter="20m"))
    done = await command_beside("policy", "test", "-f", file, *settings(cluster, tmp_path))
    assert done.status == 0, done
    words = " ".join(done.out.split())
    assert f"demo/{NAME} RayCluster" in words
    assert "1 job: 1 Attached. Suspended at once: 0. Other jobs with GPUs: 1." in words


async def test_it_shows_what_differs_from_the_policy_that_is_there(cluster, tmp_path):
    await apply(cluster, IDLE_POLICY, "research", selector={"kinds": ["Ray*"]}, idleAfter="1h")
    file = written(tmp_path, policy(selector={"kinds": ["Job"]}), policy("other", idleAfter="20m"))
    done = await command_beside("policy", "test", "-f", file, *settings(cluster, tmp_path), "--json")
    [ray] = [each for each in done.json["jobs"] if each["name"] == NAME]
    assert (ray["before"], ray["policy"]) == ("IdlePolicy/research", "IdlePolicy/other")
    assert ray["differs"] == [{"field": "idleAfter", "from": "1h", "to": "20m"}]


async def test_policies_that_are_not_valid_are_told_with_status_1(cluster, tmp_path):
    given = (
        policy(idleAfter="10m", idleAfterUnderPressure="1h"),
        policy("loud", mode="enforce"),
        policy("other", actuator="direct"),
    )
    done = await command_beside("policy", "test", "-f", written(tmp_path, *given), *settings(cluster, tmp_path))
    assert done.status == 1
    words = " ".join(done.out.split())
    assert "IdlePolicy/research is not valid: spec.idleAfterUnderPressure: 1h is longer" in words
    assert "IdlePolicy/loud is not valid: spec.mode: 'enforce' is unknown; write 'Observe' or 'Enforce'" in words
    assert "IdlePolicy/other is not valid: spec.actuator: 'direct' is unknown; write 'KEDA' or 'Direct'" in words


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"kind": "Pod"}, "there is no IdlePolicy or ClusterIdlePolicy in it"),
        ({**policy(), "apiVersion": "v1"}, "apiVersion is 'v1'; write 'idlegpu.io/v1alpha1'"),
        (policy(idleafter="1h"), "spec.idleafter is no field; there are activeAbove"),
        (policy(selector={"kind": ["Job"]}), "spec.selector.kind is no field; there are gpuModels, kinds"),
        (policy(exclude=[{}, {"untill": "x"}]), "spec.exclude[1].untill is no field; there are gpuModels"),
        (policy(budget={"atonce": 2}), "spec.budget.atonce is no field; there are atOnce, perPeriod"),
        (policy(selector={"labels": {"app": "x"}}), "spec.selector.labels.app is no field; there are matchExpressions"),
        (policy(wakeAt=[{"at": "08:00"}]), "spec.wakeAt[0].at is no field; there are days"),
        (policy(precedence="high"), "IdlePolicy research: spec.precedence: expected int, got str"),
        (policy(activeAbove=5), "IdlePolicy research: spec.activeAbove: expected str, got int; write it in quotes"),
        ("{", "policies.yaml"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_where(tmp_path, body, problem):
    file = tmp_path / "policies.yaml"
    file.write_text(body if isinstance(body, str) else yaml.safe_dump(body), encoding="utf-8")
    done = command("policy", "test", "-f", str(file))
    assert done.status == 2
    assert problem in done.err
