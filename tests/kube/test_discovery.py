import asyncio

import pytest
from aiohttp import web
from kube.faulty_api import not_found, status

from scaler.errors import KubeError
from scaler.kube.discovery import Discovery, read_scale
from scaler.kube.objects.resources import DEPLOYMENT, Resource

WIDGET = Resource(group="example.org", version="v1", plural="widgets", kind="Widget")


def serving(*entries):
    async def handler(_):
        return web.json_response({"kind": "APIResourceList", "resources": list(entries)})

    return handler


WIDGETS = (
    {"name": "widgets", "kind": "Widget", "namespaced": True},
    {"name": "widgets/scale", "kind": "Scale", "namespaced": True},
    {"name": "gadgets", "kind": "Gadget", "namespaced": False},
)


async def test_a_kind_is_found_by_the_apis_own_discovery(faulty, transport):
    faulty.handler = serving(*WIDGETS)
    discovery = Discovery(transport)
    assert await discovery.resolve_kind("example.org/v1", "Widget") == WIDGET
    assert (await discovery.resolve_kind("example.org/v1", "Gadget")).namespaced is False
    assert [request.path for request in faulty.requests] == ["/apis/example.org/v1"]


async def test_well_known_kinds_are_not_asked_for(faulty, transport):
    assert await Discovery(transport).resolve_kind("apps/v1", "Deployment") == DEPLOYMENT
    assert faulty.requests == []


async def test_a_thousand_questions_at_once_are_one(faulty, transport):
    faulty.handler = serving(*WIDGETS)
    discovery = Discovery(transport)
    await asyncio.gather(*(discovery.resolve_kind("example.org/v1", "Widget") for _ in range(1000)))
    assert len(faulty.requests) == 1


@pytest.mark.parametrize("handler", [not_found, serving(), serving(*WIDGETS)])
async def test_an_unknown_kind_is_said_to_be_unknown(faulty, transport, handler):
    faulty.handler = handler
    discovery = Discovery(transport)
    for _ in range(5):
        with pytest.raises(KubeError, match=r"'widget' of apiVersion 'example\.org/v1'") as error:
            await discovery.resolve_kind("example.org/v1", "widget")
        assert (error.value.status, error.value.reason) == (404, "KindNotFound")
    assert len(faulty.requests) == 1


async def test_a_kind_that_is_installed_later_is_found(faulty, transport):
    faulty.handler = not_found
    discovery = Discovery(transport, missing_seconds=0)
    with pytest.raises(KubeError):
        await discovery.resolve_kind("example.org/v1", "Widget")
    faulty.handler = serving(*WIDGETS)
    assert await discovery.resolve_kind("example.org/v1", "Widget") == WIDGET


async def test_an_outage_is_not_taken_for_an_unknown_kind(faulty, transport):
    async def refuse(_):
        return status(403, "Forbidden")

    faulty.handler = refuse
    discovery = Discovery(transport)
    with pytest.raises(KubeError) as error:
        await discovery.resolve_kind("example.org/v1", "Widget")
    assert error.value.status == 403
    faulty.handler = serving(*WIDGETS)
    assert await discovery.resolve_kind("example.org/v1", "Widget") == WIDGET


@pytest.mark.parametrize("api_version", ["../../api/v1", "a/b/c", ""])
async def test_a_hostile_api_version_leads_nowhere(faulty, transport, api_version):
    with pytest.raises(KubeError) as error:
        await Discovery(transport).resolve_kind(api_version, "Secret")
    assert error.value.status == 400
    assert faulty.requests == []


async def test_zero_replicas_are_omitted_by_the_api(faulty, transport):
    async def scale(_):
        return web.json_response({"kind": "Scale", "spec": {}, "status": {"replicas": 0, "selector": "a=b"}})

    faulty.handler = scale
    found = await read_scale(transport, WIDGET, "ns", "w")
    assert (found.replicas, found.selector) == (0, "a=b")
    assert faulty.requests[0].path == "/apis/example.org/v1/namespaces/ns/widgets/w/scale"


# ------------------------------------------------------------------------------------------------------------ /scale


async def test_what_is_no_scale_is_an_error(faulty, transport):
    async def page(_):
        return web.Response(text="<html>")

    faulty.handler = page
    with pytest.raises(KubeError, match="not a Scale"):
        await read_scale(transport, WIDGET, "ns", "w")
