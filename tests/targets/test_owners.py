"""Who owns a workload: the nearest name counts, and only what is one."""

from types import SimpleNamespace
from typing import Any

import pytest

from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.kueue_queues import Namespace
from scaler.targets.owners import OWNER, Owners


def meta(owner: str = "", **labels: str) -> ObjectMeta:
    annotations = {OWNER: owner} if owner else {}
    return ObjectMeta(name="train", namespace="demo", annotations=annotations, labels=labels)


def owners(namespace: ObjectMeta | None) -> Owners:
    found = Namespace(metadata=namespace) if namespace is not None else None
    namespaces: Any = SimpleNamespace(get=lambda _, name: found if name == "demo" else None)
    return Owners(labels=("team", "squad"), namespaces=namespaces)


@pytest.mark.parametrize(
    ("objects", "namespace", "owner"),
    [
        ([meta("ada@example.com", team="a"), meta("bob")], meta("carl"), "ada@example.com"),
        ([meta(team="a"), meta("bob")], meta("carl"), "bob"),
        ([meta(squad="s"), meta(team="a")], meta("carl"), "a"),
        ([meta(squad="s"), meta()], meta("carl"), "s"),
        ([meta(other="x")], meta("carl", team="t"), "carl"),
        ([meta()], meta(team="t"), "t"),
        ([meta()], meta(), "demo"),
        ([meta()], None, "demo"),
        ([meta(" ada "), meta("bob")], meta(), "ada"),
        ([meta("<http://evil>"), meta("bob")], meta(), "bob"),
        ([meta("a\nBcc: x@example.com")], meta(), "demo"),
        ([meta("a" * 128)], meta(), "demo"),
    ],
)
def test_the_nearest_name_is_the_owner(objects: list[ObjectMeta], namespace: ObjectMeta | None, owner: str) -> None:
    assert owners(namespace).of(*objects) == owner


def test_where_namespaces_are_not_read_their_name_is_the_owner() -> None:
    assert Owners(labels=("team",)).of(meta()) == "demo"
