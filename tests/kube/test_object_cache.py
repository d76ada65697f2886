import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube.scripted_api import pod

from scaler.errors import KubeError
from scaler.kube.object_cache import Indexer, ObjectCache
from scaler.kube.objects.core import ListPage, ObjectMeta, PartialObjectMetadata, Pod


def by_label(obj):
    return obj.metadata.labels.values()


def raw(value):
    return msgspec.Raw(msgspec.json.encode(value))


async def pages(*objects, version="100"):
    yield ListPage(items=[raw(obj) for obj in objects], metadata=ListPage.ListMeta(resource_version=version))


@pytest.fixture
def copy():
    return ObjectCache(Pod, {"label": by_label})


@pytest.fixture
def changes(copy):
    seen = []
    copy.subscribe(lambda change: seen.append((change.key[1], change.old is not None, change.new is not None)))
    return seen


def names(objects):
    return sorted(obj.metadata.name for obj in objects)


# ------------------------------------------------------------------------------------------------------------ store

OBJECTS = st.builds(
    lambda name, labels: PartialObjectMetadata(
        metadata=ObjectMeta(name=name, labels={str(i): v for i, v in enumerate(labels)})
    ),
    st.sampled_from("abc"),
    st.lists(st.sampled_from("xyz"), max_size=3),
)


@given(st.lists(st.one_of(OBJECTS, st.sampled_from("abc"))))
def test_indexes_are_always_in_step_with_the_objects(steps):
    store, model = Indexer({"label": by_label}), {}
    for step in steps:
        if isinstance(step, str):
            assert store.drop(("", step)) == model.pop(("", step), None)
        else:
            assert store.put(step) == model.get(step.metadata.key)
            model[step.metadata.key] = step
        assert names(store.items()) == sorted(name for _, name in model)
        for label in "xyz":
            expected = [obj.metadata.name for obj in model.values() if label in by_label(obj)]
            assert names(store.by_index("label", label)) == sorted(expected)


async def test_a_list_is_seen_all_at_once(copy):
    await copy.replace(pages(pod("a")))

    async def slowly():
        yield ListPage(items=[raw(pod("b"))])
        assert names(copy.items()) == ["a"]
        yield ListPage(items=[raw(pod("c"))])

    await copy.replace(slowly())
    assert names(copy.items()) == ["b", "c"]


# ------------------------------------------------------------------------------------------------------------- copy


async def test_a_list_that_breaks_off_leaves_the_copy_as_it_was(copy):
    await copy.replace(pages(pod("a")))

    async def broken():
        yield ListPage(items=[raw(pod("b"))])
        raise KubeError("broken")

    with pytest.raises(KubeError):
        await copy.replace(broken())
    assert names(copy.items()) == ["a"]


async def test_subscribers_hear_of_differences_only(copy, changes):
    await copy.replace(pages(pod("same", 1), pod("changed", 1), pod("gone", 1)))
    changes.clear()
    await copy.replace(pages(pod("same", 1), pod("changed", 2), pod("new", 2)))
    assert sorted(changes) == [("changed", True, True), ("gone", True, False), ("new", False, True)]


async def test_the_revision_of_a_namespace_grows_with_every_change_there_and_with_no_other(copy):
    def revisions():
        return [copy.revision(namespace) for namespace in ("ns", "other")]

    steps = [
        (lambda: copy.replace(pages(pod("a", 1), elsewhere)), (True, True)),
        (lambda: copy.replace(pages(pod("a", 1), elsewhere)), (False, False)),
        (lambda: copy.replace(pages(pod("a", 2), elsewhere)), (True, False)),
        (lambda: copy.replace(pages(pod("a", 2))), (False, True)),
        (copy.clear, (True, False)),
    ]
    elsewhere = {**pod("b", 1), "metadata": {**pod("b", 1)["metadata"], "namespace": "other"}}
    for step, grows in steps:
        before = revisions()
        await step()
        assert tuple(now > old for now, old in zip(revisions(), before, strict=True)) == grows
    before = revisions()
    copy.put(raw(pod("a", 3)))
    assert revisions() == [before[0] + 1, before[1]]
    copy.remove(raw(pod("a", 4)))
    assert revisions() == [before[0] + 2, before[1]]


def test_an_event_that_is_sent_twice_is_reported_once(copy, changes):
    copy.put(raw(pod("a", 1)))
    copy.put(raw(pod("a", 1)))
    copy.remove(raw(pod("a", 2)))
    copy.remove(raw(pod("a", 2)))
    assert changes == [("a", False, True), ("a", True, False)]


# ------------------------------------------------------------------------------------------------------ undecodable


def broken(name, version=2):
    return {**pod(name, version), "spec": {"containers": "none"}}


def test_an_object_that_becomes_undecodable_does_not_look_deleted(copy, changes):
    copy.put(raw(pod("a", 1)))
    changes.clear()
    assert copy.put(raw(broken("a", 2))) == "2"
    assert names(copy.items()) == ["a"]
    assert ("ns", "a") in copy.undecodable
    assert changes == []


async def test_an_undecodable_object_keeps_its_last_readable_version_over_a_new_list(copy, changes):
    copy.put(raw(pod("a", 1)))
    await copy.replace(pages(broken("a", 5)))
    assert names(copy.items()) == ["a"]
    assert ("ns", "a") in copy.undecodable
    assert ("a", True, False) not in changes


@pytest.mark.parametrize("is_readable", [True, False], ids=["a readable version", "a deletion"])
def test_the_doubt_ends_with(copy, is_readable):
    copy.put(raw(broken("a", 1)))
    copy.put(raw(pod("a", 2))) if is_readable else copy.remove(raw(broken("a", 2)))
    assert (names(copy.items()), copy.undecodable) == (["a"] if is_readable else [], {})


async def test_a_new_list_without_the_object_ends_the_doubt(copy):
    await copy.replace(pages(broken("a")))
    await copy.replace(pages())
    assert copy.undecodable == {}


async def test_an_object_without_even_a_name_is_in_doubt_as_well(copy):
    await copy.replace(pages({"metadata": 5}))
    assert list(copy.undecodable) == [("", "")]
