import pytest

from scaler.errors import KubeError
from scaler.kube.objects.resources import CUSTOM_RESOURCE_DEFINITION, DEPLOYMENT, POD, WORKLOAD, group_version_path

PATHS = {
    "an object": (POD.path("ns", "p"), "/api/v1/namespaces/ns/pods/p"),
    "the objects of a namespace": (WORKLOAD.path("ns"), "/apis/kueue.x-k8s.io/v1beta2/namespaces/ns/workloads"),
    "the objects of all namespaces": (POD.path(), "/api/v1/pods"),
    "a subresource": (DEPLOYMENT.path("ns", "d", "scale"), "/apis/apps/v1/namespaces/ns/deployments/d/scale"),
    "a cluster's object": (
        CUSTOM_RESOURCE_DEFINITION.path(name="scaledobjects.keda.sh"),
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/scaledobjects.keda.sh",
    ),
    "a cluster's object, whatever the namespace": (
        CUSTOM_RESOURCE_DEFINITION.path("ns", "x"),
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x",
    ),
    "an API version": (group_version_path("ray.io/v1"), "/apis/ray.io/v1"),
    "the core API": (group_version_path("v1"), "/api/v1"),
}


@pytest.mark.parametrize(("path", "expected"), PATHS.values(), ids=PATHS.keys())
def test_the_path_of(path, expected):
    assert path == expected


@pytest.mark.parametrize("name", ["..", "../secrets/x", "a/b", "a?b", "a%2fb", "a b", ".", "a\n", "ü", "x" * 254])
def test_a_name_that_leads_elsewhere_is_refused(name):
    with pytest.raises(KubeError, match="cannot be the name of an object") as refused:
        POD.path("ns", name)
    assert refused.value.status == 400


@pytest.mark.parametrize("api_version", ["", "a/b/c", "../x", "apps/", "apps/v1/.."])
def test_an_api_version_that_leads_elsewhere_is_refused(api_version):
    with pytest.raises(KubeError):
        group_version_path(api_version)


def test_a_namespaced_object_needs_its_namespace():
    with pytest.raises(KubeError, match="needs a namespace"):
        POD.path(name="p")
