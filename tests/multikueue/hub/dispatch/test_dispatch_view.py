"""What `pending` and `queues --all-clusters` show of a hub: every cluster with its answer, and what clusters have."""

from io import StringIO
from typing import Any

from multikueue.hub.dispatch.dispatch_site import NAMESPACE_NAME, Site
from rich.console import Console

from scaler.app.cli.pending import cluster_rows
from scaler.app.cli.queues import render_clusters
from scaler.reporting.views.dispatch import DispatchReader

QUEUE = {
    "name": "cq",
    "largestGang": {"now": 2, "afterReclaim": 6},
    "flavors": [
        {
            "name": "a100",
            "resource": "nvidia.com/gpu",
            "models": ["A100"],
            "nominal": 8,
            "free": 2,
            "idle": 5,
            "reclaimable": 4,
        }
    ],
}


def reader(site: Site) -> DispatchReader:
    dispatcher = site.dispatcher.dispatcher
    return DispatchReader(objects=dispatcher.objects, connections=dispatcher.connections, planner=dispatcher.planner)


def printed(renderable: Any) -> str:
    console = Console(width=160, file=StringIO())
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


async def test_another_replica_shows_what_each_cluster_answers_and_which_is_nominated() -> None:
    site = Site("w1", "w2", "w3")
    site.waits("gang")
    site.is_active("w3", active=False)
    await site.answers(w1={"fit": "Wait", "message": "8 of 8 GPUs work"}, w2={"fit": "Reclaim", "cost": 1500})
    shown = (await reader(site).waiting(site.now))[NAMESPACE_NAME, "gang"]
    assert [(each["name"], each["answer"], each["nominated"], each["reclaim"]) for each in shown["clusters"]] == [
        ("w2", "Reclaim", True, True),
        ("w1", "Wait", False, False),
        ("w3", "NotActive", False, False),
    ]
    assert shown["nominated"] == ["w2"]
    since = shown["clusters"][0]["nominatedAt"]
    assert {str(text) for label, text in cluster_rows(shown) if label == "cluster"} == {
        f"w2  Reclaim: cost 1.5  nominated since {since}, may suspend idle workloads for it",
        "w1  Wait: 8 of 8 GPUs work",
        "w3  the MultiKueueCluster is not Active: no route to host",
    }


async def test_what_clusters_have_is_shown_while_they_say_so_and_why_not_otherwise() -> None:
    site = Site("w1", "w2")
    site.waits("gang")
    await site.settles()
    for _ in range(2):
        site.publishes("w1", clusterQueues=[QUEUE])
        await site.settles()
    shown = reader(site).clusters(site.now)
    first, second = shown["clusters"]
    assert (first["name"], first["problem"], first["clusterQueues"]) == ("w1", None, [QUEUE])
    assert (second["name"], second["problem"]) == ("w2", "its ClusterOffer has no current status")
    text = printed(render_clusters(shown, 160))
    assert "w1       cq     a100 (A100)" in text
    assert "w2: its ClusterOffer has no current status" in text
    assert printed(render_clusters({"clusters": []}, 80)).strip() == "There are no MultiKueueClusters."
