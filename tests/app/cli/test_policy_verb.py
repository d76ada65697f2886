"""`policy test`: what policies would do, in a cluster with a gang that is idle and a Deployment."""

import json

import pytest
import yaml
from app.cli.command import command, command_beside
from attachment.test_attached_jobs import DEPLOYMENT, IDLE_POLICY, SCALED_OBJECT, apply, gang
from running_scaler import gpus
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


def settings(cluster, tmp_path, exporter=None):
    document = {
        "evaluation": {"interval": "200ms", "overlap": "1s"},
        "trust": {"collectionInterval": "200ms", "maxAgeIntervals": 10, "maxGapIntervals": 10, "minCoverage": "30 %"},
    }
    if exporter is not None:
        document["dcgm"] = {"endpoints": [exporter.node_urls["node-a"]]}
    (tmp_path / "settings.yaml").write_text(json.dumps(document), encoding="utf-8")
    return ["--kubeconfig", str(cluster.kubeconfig), "--config", str(tmp_path / "settings.yaml")]


async def test_it_shows_who_would_follow_and_what_would_happen_at_once(cluster, tmp_path):
    file = written(tmp_path, policy(mode="Enforce", idleAfter="1s", warmUp="0s"))
    async with gpus(busy=0.9) as (_, exporter):
        done = await command_beside("policy", "test", "-f", file, *settings(cluster, tmp_path, exporter), "--json")
    assert done.status == 0, done
    web, ray = done.json["jobs"]
    assert (web["kind"], web["change"], web["words"]) == (
        "Deployment",
        "Problem",
        "it has 3 replicas; only what has one is scaled between 1 and 0",
    )
    assert (ray["name"], ray["change"], ray["policy"]) == (NAME, "Attached", "IdlePolicy/research")
    assert ray["verdict"] in ("Busy", "Unknown")
    assert ray["now"].startswith("nothing: ")
    assert not await cluster.all(SCALED_OBJECT)


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


async def test_a_policy_that_is_not_valid_is_told_with_status_1(cluster, tmp_path):
    file = written(tmp_path, policy(idleAfter="10m", idleAfterUnderPressure="1h"))
    done = await command_beside("policy", "test", "-f", file, *settings(cluster, tmp_path))
    assert done.status == 1
    assert "IdlePolicy/research is not valid: spec.idleAfterUnderPressure: 1h is longer" in done.out


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"kind": "Pod"}, "there is no IdlePolicy or ClusterIdlePolicy in it"),
        ({**policy(), "apiVersion": "v1"}, "apiVersion is 'v1'; write 'idlegpu.io/v1alpha1'"),
        (policy(idleafter="1h"), "spec.idleafter is no field; there are activeAbove"),
        (policy(precedence="high"), "$.spec.precedence"),
        ("{", "policies.yaml"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_where(tmp_path, body, problem):
    file = tmp_path / "policies.yaml"
    file.write_text(body if isinstance(body, str) else yaml.safe_dump(body), encoding="utf-8")
    done = command("policy", "test", "-f", str(file))
    assert done.status == 2
    assert problem in done.err
