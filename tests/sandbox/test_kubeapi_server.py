"""The embedded Kubernetes API as the demo holds it: start and stop, access, definitions, history."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from sandbox.kubeapi_session import CONFIG_MAPS, Session, next_event, serving
from scaler_sandbox.kubeapi import KubeApi

GROUP = "things.example.com"


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    async with serving(KubeApi()) as session:
        yield session


def definition(**schema: object) -> dict[str, Any]:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", **schema}},
    }
    names = {"plural": "things", "kind": "Thing"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


async def test_objects_outlive_an_outage_and_the_address_stays(session: Session) -> None:
    made = await session.create("kept", a="1")
    url = session.api.url
    await session.api.stop()
    with pytest.raises(aiohttp.ClientError):
        await session.call("GET", CONFIG_MAPS)
    assert await session.api.start() == url
    assert (await session.call("GET", f"{CONFIG_MAPS}/kept"))[1] == made


async def test_garbage_that_fell_before_an_outage_is_collected_after_it(session: Session) -> None:
    parent = await session.create("parent")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "parent", "uid": parent["metadata"]["uid"]}
    await session.call("POST", CONFIG_MAPS, {"metadata": {"name": "child", "ownerReferences": [owner]}})
    await session.call("DELETE", f"{CONFIG_MAPS}/parent")
    await session.api.stop()
    await session.api.start()
    async with asyncio.timeout(30):
        while (await session.call("GET", f"{CONFIG_MAPS}/child"))[0] != 404:  # noqa: ASYNC110 - it is polled over HTTP
            await asyncio.sleep(0.01)


async def test_definitions_are_installed_before_or_after_the_start_and_replaced() -> None:
    api = KubeApi()
    api.install_crds([definition()])
    path = f"/apis/{GROUP}/v1/namespaces/default/things"
    thing = {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": {"name": "one"}, "a": 1}
    async with serving(api) as session:
        assert "a" not in (await session.call("POST", path, thing))[1]
        api.install_crds([definition(properties={"a": {"type": "integer"}})])
        api.install_crds([definition(properties={"a": {"type": "integer"}})])
        assert (await session.call("PUT", f"{path}/one", (await session.call("GET", f"{path}/one"))[1] | {"a": 1}))[1][
            "a"
        ] == 1


def test_rules_that_cannot_be_evaluated_are_listed_and_not_guessed() -> None:
    rules = {
        "checked": "self != 'no'",
        "kubernetes only": "quantity(self).isGreaterThan(quantity('1'))",
        "optional": "oldSelf.orValue('') != self",
        "a date": "self > timestamp('2020-01-01T00:00:00Z')",
    }
    formats = {"a date": "date-time"}
    properties = {
        f"f{index}": {
            "type": "string",
            **({"format": formats[name]} if name in formats else {}),
            "x-kubernetes-validations": [{"rule": rule}],
        }
        for index, (name, rule) in enumerate(rules.items())
    }
    api = KubeApi()
    api.install_crds([definition(properties=properties)])
    served = next(resource for resource in api.served() if resource.group == GROUP)
    unchecked = served.versions["v1"].unchecked_rules
    assert set(unchecked) == {rules["kubernetes only"], rules["optional"], rules["a date"]}


async def test_a_watch_from_before_the_log_gets_410() -> None:
    async with serving(KubeApi(history=8)) as session:
        revision = await session.revision()
        for index in range(30):
            await session.create(f"c{index}")
        async with session.watch(f"&resourceVersion={revision}") as watch:
            kind, status = await next_event(watch)
            assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
            assert await watch.content.read() == b""
