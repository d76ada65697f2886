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


async def test_kubectl_applies_gets_scales_patches_and_deletes_and_shows_what_is_wrong(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", text=CRD)
    await kubectl("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=60s")
    red, green = WIDGET.replace("COLOR", "red"), WIDGET.replace("COLOR", "green")
    assert "created" in await kubectl("apply", "-f", "-", text=red)
    assert "configured" in await kubectl("apply", "-f", "-", text=green)
    assert "serverside-applied" in await kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=red)
    header, row = (await kubectl("get", "wd", "-l", "app=x")).splitlines()
    assert header.split() == ["NAME", "COLOR", "REPLICAS"]
    assert row.split() == ["one", "red", "1"]
    output = await kubectl("apply", "-f", "-", text=WIDGET.replace("COLOR", "blue"), fails=True)
    assert 'spec.color: Unsupported value: "blue": supported values: "red", "green"' in output
    output = await kubectl("apply", "-f", "-", text=WIDGET.replace("color", "colour"), fails=True)
    assert 'strict decoding error: unknown field "spec.colour"' in output
    await kubectl("scale", "widget/one", "--replicas=0")
    await kubectl("annotate", "widget/one", "idlegpu.io/wake=now")
    await kubectl("patch", "widget/one", "--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Asleep"}}')
    await kubectl("patch", "widget/one", "--type=merge", "-p", '{"metadata":{"finalizers":["example.com/f"]}}')
    described = await kubectl("describe", "widget", "one")
    for text in ("idlegpu.io/wake: now", "Replicas:  0", "Phase:  Asleep", "Events:"):
        assert text in described
    deleting = asyncio.create_task(kubectl("delete", "widget", "one", "--timeout=60s"))
    await kubectl("wait", "--for=jsonpath={.metadata.deletionTimestamp}", "widget/one", "--timeout=60s")
    await kubectl("patch", "widget/one", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert "deleted" in await deleting
