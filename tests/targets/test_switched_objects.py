"""When kinds with a switch of their own are followed, and what is known of them then."""

import asyncio
from pathlib import Path

from small_cluster import NAMESPACE_NAME, embedded_api, until
from switched_kinds import definition, notebook

from scaler.idleness.verdict import Unknown
from scaler.kube.objects.resources import NAMESPACE, NOTEBOOK
from scaler.kube.objects.switched_kinds import SwitchedObject
from scaler.targets.switched_objects import SwitchedObjects
from scaler.targets.switches import SWITCHES

NOTEBOOKS = SWITCHES[NOTEBOOK.group, NOTEBOOK.kind]


async def test_a_kind_that_nobody_names_is_not_asked_for_and_one_that_broke_is_followed_anew(tmp_path: Path) -> None:
    async with embedded_api(tmp_path, definition(NOTEBOOK)) as (_, kube):
        await kube.create(NAMESPACE.path(), {"metadata": {"name": NAMESPACE_NAME}})
        await kube.create(NOTEBOOK.path(NAMESPACE_NAME), notebook("nb", NAMESPACE_NAME))
        switched = SwitchedObjects(kube, namespaces=())
        await switched.wait_listed()
        assert isinstance(found := switched.get(NOTEBOOKS, NAMESPACE_NAME, "nb"), Unknown)
        assert found.message == "Notebook objects are not listed yet"
        switched.watch(NOTEBOOKS)
        await switched.wait_listed()
        assert isinstance(switched.get(NOTEBOOKS, NAMESPACE_NAME, "nb"), SwitchedObject)
        [task] = switched._tasks
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: isinstance(switched.get(NOTEBOOKS, NAMESPACE_NAME, "nb"), Unknown))
        await switched.wait_listed()
        assert isinstance(switched.get(NOTEBOOKS, NAMESPACE_NAME, "nb"), SwitchedObject)
        await switched.close()
