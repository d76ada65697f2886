"""kubectl works with the embedded Kubernetes API, without flags that make it look away."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from programs import needs
from sandbox.kubeapi_session import serving
from scaler_sandbox.kubeapi import KubeApi

pytestmark = needs("kubectl")

CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
    additionalPrinterColumns:
    - {name: Color, type: string, jsonPath: .spec.color}
    - {name: Replicas, type: integer, jsonPath: .spec.replicas}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              color: {type: string, enum: [red, green]}
              replicas: {type: integer, default: 1}
          status:
            type: object
            properties:
              replicas: {type: integer}
              phase: {type: string}
"""

WIDGET = """
apiVersion: example.com/v1
kind: Widget
metadata: {name: one, labels: {app: x}}
spec: {color: COLOR}
"""

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: a, image: IMAGE}, {name: b, image: two}]}
"""

Kubectl = Callable[..., Coroutine[Any, Any, str]]


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    async with serving(KubeApi()) as session:
        session.api.write_kubeconfig(tmp_path / "config")

        async def run(*arguments: str, text: str = "", fails: bool = False) -> str:
            process = await asyncio.create_subprocess_exec(
                *("kubectl", f"--kubeconfig={tmp_path}/config", f"--cache-dir={tmp_path}/cache", *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await asyncio.wait_for(process.communicate(text.encode()), 90)
            assert (process.returncode != 0) is fails, output.decode()
            return output.decode()

        yield run


@pytest.fixture
async def with_widgets(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", text=CRD)
    await kubectl("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=60s")


async def test_apply_creates_changes_and_leaves_alone(kubectl: Kubectl, with_widgets: None) -> None:
    red, green = WIDGET.replace("COLOR", "red"), WIDGET.replace("COLOR", "green")
    assert "created" in await kubectl("apply", "-f", "-", text=red)
    assert "unchanged" in await kubectl("apply", "-f", "-", text=red)
    assert "configured" in await kubectl("apply", "-f", "-", text=green)
    assert await kubectl("get", "wd", "one", "-o", "jsonpath={.spec.color}") == "green"


async def test_server_side_apply_merges_into_what_is_there(kubectl: Kubectl, with_widgets: None) -> None:
    red, green = WIDGET.replace("COLOR", "red"), WIDGET.replace("COLOR", "green")
    assert "serverside-applied" in await kubectl("apply", "--server-side", "-f", "-", text=red)
    await kubectl("apply", "--server-side", "--field-manager=me", "-f", "-", text=green)
    assert await kubectl("get", "wd", "one", "-o", "jsonpath={.spec.color}") == "green"


async def test_what_is_wrong_is_told(kubectl: Kubectl, with_widgets: None) -> None:
    output = await kubectl("apply", "-f", "-", text=WIDGET.replace("COLOR", "blue"), fails=True)
    assert 'spec.color: Unsupported value: "blue": supported values: "red", "green"' in output
    output = await kubectl("apply", "-f", "-", text=WIDGET.replace("color", "colour"), fails=True)
    assert 'strict decoding error: unknown field "spec.colour"' in output


async def test_get_prints_the_columns_of_the_definition(kubectl: Kubectl, with_widgets: None) -> None:
    await kubectl("apply", "-f", "-", text=WIDGET.replace("COLOR", "red"))
    header, row = (await kubectl("get", "widgets", "-l", "app=x")).splitlines()
    assert header.split() == ["NAME", "COLOR", "REPLICAS"]
    assert row.split() == ["one", "red", "1"]
    assert "No resources found" in await kubectl("get", "widgets", "-l", "app=y")


async def test_scale_annotate_label_patch_and_describe(kubectl: Kubectl, with_widgets: None) -> None:
    await kubectl("apply", "-f", "-", text=WIDGET.replace("COLOR", "red"))
    await kubectl("scale", "widget/one", "--replicas=0")
    await kubectl("wait", "--for=jsonpath={.spec.replicas}=0", "widget/one", "--timeout=60s")
    await kubectl("annotate", "widget/one", "idlegpu.io/wake=now")
    await kubectl("label", "widget/one", "app=y", "--overwrite")
    await kubectl("patch", "widget/one", "--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Asleep"}}')
    described = await kubectl("describe", "widget", "one")
    for text in ("idlegpu.io/wake: now", "app=y", "Replicas:  0", "Phase:  Asleep", "Events:"):
        assert text in described


async def test_a_deployment_is_applied_and_scaled(kubectl: Kubectl) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    await kubectl(*apply, text=DEPLOYMENT.replace("IMAGE", "one"))
    await kubectl(*apply, text=DEPLOYMENT.replace("IMAGE", "three"))
    images = "jsonpath={.spec.template.spec.containers[*].image}"
    assert await kubectl("get", "deploy", "web", "-o", images) == "three two"
    await kubectl("scale", "deploy/web", "--replicas=3")
    assert "web" in await kubectl("get", "all")
    assert "deleted" in await kubectl("delete", "deploy", "web")


async def test_deleting_waits_for_finalizers(kubectl: Kubectl, with_widgets: None) -> None:
    await kubectl("apply", "-f", "-", text=WIDGET.replace("COLOR", "red"))
    await kubectl("patch", "widget/one", "--type=merge", "-p", '{"metadata":{"finalizers":["example.com/f"]}}')
    deleting = asyncio.create_task(kubectl("delete", "widget", "one", "--timeout=60s"))
    await kubectl("wait", "--for=jsonpath={.metadata.deletionTimestamp}", "widget/one", "--timeout=60s")
    await kubectl("patch", "widget/one", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert "deleted" in await deleting


async def test_namespaces_and_definitions_can_be_deleted(kubectl: Kubectl, with_widgets: None) -> None:
    await kubectl("apply", "-f", "-", text="apiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n")
    await kubectl("-n", "team", "apply", "-f", "-", text=WIDGET.replace("COLOR", "red"))
    await kubectl("delete", "ns", "team", "--timeout=60s")
    assert "NotFound" in await kubectl("get", "ns", "team", fails=True)
    await kubectl("delete", "crd", "widgets.example.com", "--timeout=60s")
    assert "the server could not find the requested resource" in await kubectl("get", "widgets", fails=True)
