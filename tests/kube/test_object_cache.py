from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
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


# ------------------------------------------------------------------------------------------------------- own writes


async def meanwhile(happens, *objects, version):
    """A list that was read before that happens, and comes after it."""
    async for page in pages(*objects, version=version):
        happens()
        yield page


def versions(copy):
    return {obj.metadata.name: int(obj.metadata.resource_version) for obj in copy.items()}


class Server:
    """Objects of one kind, with every event and every answer on its way to the copy."""

    def __init__(self):
        self.version, self.objects, self.events, self.answers = 0, {}, [], []
        self.gone = {"a": 0, "b": 0}
        """When each was deleted last."""

    def write(self, name, *, is_ours):
        self.version += 1
        self.objects[name] = self.version
        self.events.append((name, self.version, True))
        if is_ours:
            self.answers.append((name, self.version))

    def delete(self, name):
        if self.objects.pop(name, None):
            self.version += 1
            self.gone[name] = self.version
            self.events.append((name, self.version, False))

    def deliver(self, copy):
        for name, version, is_there in self.events[:1]:
            tell = copy.put if is_there else copy.remove
            copy._version = tell(raw(pod(name, version)))
        del self.events[:1]

    async def list(self, copy):
        listed = [pod(name, version) for name, version in self.objects.items()]
        version, self.events = self.version, []
        copy._version = await copy.replace(pages(*listed, version=str(version)))


STEPS = st.tuples(
    st.sampled_from(
        ["ours", "theirs", "ours", "theirs", "delete", "event", "event", "answer", "answer", "list", "late list"]
    ),
    st.sampled_from("ab"),
)


@settings(max_examples=100)
@given(st.lists(STEPS, max_size=25))
async def test_who_writes_reads_its_own_writes_and_nothing_older_after_that(steps):
    copy, server, seen = ObjectCache(Pod, {}), Server(), {"a": 0, "b": 0}
    for step, name in steps:
        match step:
            case "ours" | "theirs":
                server.write(name, is_ours=step == "ours")
            case "delete":
                server.delete(name)
            case "event":
                server.deliver(copy)
            case "answer" if server.answers:
                answered, version = server.answers.pop(0)
                copy.file(raw(pod(answered, version)))
                known = versions(copy).get(answered, server.gone[answered])
                assert known >= version, "it is there at once, or it was deleted since"
            case "list":
                await server.list(copy)
            case "late list":
                """It was read before we write, and comes after the answer."""
                listed = [pod(each, version) for each, version in server.objects.items()]
                at, server.events = str(server.version), []
                server.write(name, is_ours=False)
                late = partial(copy.file, raw(pod(name, server.version)))
                copy._version = await copy.replace(meanwhile(late, *listed, version=at))
                assert versions(copy)[name] == server.version
        for each, version in versions(copy).items():
            assert version >= seen[each], "nothing is as it was before"
            seen[each] = version
    while server.events:
        server.deliver(copy)
    for answered, version in server.answers:
        copy.file(raw(pod(answered, version)))
    assert versions(copy) == server.objects


async def test_what_was_written_stays_where_a_long_list_from_before_comes_late(copy):
    await copy.replace(pages(pod("a", 1)))
    others = [pod(f"other-{number}", 2) for number in range(600)]

    def write():
        copy.file(raw(pod("a", 900)))
        copy.file(raw(pod("made", 901)))

    await copy.replace(meanwhile(write, pod("a", 1), *others, version="700"))
    assert (versions(copy)["a"], versions(copy)["made"]) == (900, 901)
    assert len(copy) == 602
    await copy.replace(pages(pod("a", 900), *others, version="902"))
    assert "made" not in versions(copy), "it was deleted since"


async def test_a_server_that_was_set_back_is_believed(copy):
    """It was restored from a backup: its versions begin anew where they had been some time ago."""
    await copy.replace(pages(pod("a", 900), version="900"))
    copy.file(raw(pod("a", 901)))
    copy._version = await copy.replace(pages(pod("a", 500), version="510"))
    assert versions(copy) == {"a": 500}
    copy.put(raw(pod("a", 511)))
    assert versions(copy) == {"a": 511}


def test_an_answer_that_cannot_be_read_is_left_to_its_event(copy, changes):
    copy.file(raw({**pod("a", 2), "spec": {"containers": "none"}}))
    assert changes == []


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


# ------------------------------------------------------------------------------------ the copy against a plain dict


def by_letter(obj):
    """One key for many objects, and one for each, given twice."""
    return (obj.metadata.name[0], obj.metadata.name, obj.metadata.name)


NAMES = st.sampled_from([f"{letter}{number}" for letter in "abc" for number in range(12)])
VERSIONS, UNREADABLE = st.integers(1, 3), 4
LISTS = st.dictionaries(NAMES, VERSIONS)
MANY = [f"z{number}" for number in range(300)]
"""So many that the indexes are made anew."""
EVENTS = st.one_of(
    st.tuples(st.just("put"), NAMES, VERSIONS),
    st.tuples(st.just("remove"), NAMES, VERSIONS),
    st.tuples(st.just("break"), NAMES, st.just(UNREADABLE)),
    st.tuples(st.just("list"), LISTS, st.sets(NAMES)),
    st.tuples(
        st.just("list"), st.builds(lambda some, v: some | dict.fromkeys(MANY, v), LISTS, VERSIONS), st.sets(NAMES)
    ),
    st.tuples(st.just("clear")),
)


def kept(obj):
    """None of those of version 3."""
    return None if obj.metadata.resource_version == "3" else obj


class PlainCopy:
    """What the objects and the doubts are, by version, as simply as it can be said."""

    def __init__(self):
        self.known, self.doubts = {}, set()

    def apply(self, kind, *what):
        getattr(self, kind)(*what)

    def put(self, name, version):
        self.doubts.discard(name)
        self.known = {key: each for key, each in self.known.items() if key != name}
        if version != 3:
            self.known[name] = version

    def remove(self, name, _version):
        self.doubts.discard(name)
        self.known.pop(name, None)

    def break_(self, name, _version):
        self.doubts.add(name)

    def list(self, versions, broken):
        stay = {name: self.known[name] for name in broken & versions.keys() if name in self.known}
        self.doubts = {name for name in broken if name in versions}
        self.known = {name: each for name, each in versions.items() if each != 3 and name not in broken} | stay

    def clear(self):
        self.known, self.doubts = {}, set()


async def apply(copy, kind, *what):
    match kind:
        case "put":
            copy.put(raw(pod(*what)))
        case "remove":
            copy.remove(raw(pod(*what)))
        case "break":
            copy.put(raw(broken(*what)))
        case "list":
            versions, unreadable = what
            await copy.replace(
                pages(*(broken(n, UNREADABLE) if n in unreadable else pod(n, v) for n, v in versions.items()))
            )
        case "clear":
            await copy.clear()


@given(st.lists(EVENTS, max_size=12))
async def test_after_any_history_the_copy_is_what_a_plain_dict_is(events):
    copy, plain, shown = ObjectCache(Pod, {"letter": by_letter}, kept), PlainCopy(), {}

    def follow(change):
        assert shown.get(change.key) is change.old
        assert change.old is not change.new
        shown[change.key] = change.new

    copy.subscribe(follow)
    for kind, *what in events:
        before = {obj.metadata.name: obj for obj in copy.items()}
        await apply(copy, kind, *what)
        plain.apply("break_" if kind == "break" else kind, *what)
        now = {obj.metadata.name: obj for obj in copy.items()}
        assert {name: int(obj.metadata.resource_version) for name, obj in now.items()} == plain.known
        assert {name for _, name in copy.undecodable} == plain.doubts
        assert {key[1]: obj for key, obj in shown.items() if obj is not None} == now
        for name, obj in now.items():
            assert copy.by_index("letter", name) == (obj,)
            if name in before and before[name].metadata.resource_version == obj.metadata.resource_version:
                assert obj is before[name], "the very same while nothing has changed"
        for letter in "abcz":
            filed = sorted(obj.metadata.name for obj in copy.by_index("letter", letter))
            assert filed == sorted(name for name in now if name.startswith(letter))


async def test_a_long_list_is_exchanged_at_once_and_what_has_not_changed_stays_the_very_same():
    """Beyond a few changes the indexes are made anew beside those that are read."""
    copy = ObjectCache(Pod, {"letter": by_letter})
    await copy.replace(pages(*(pod(f"a{n}", 1) for n in range(300))))
    before = {obj.metadata.name: obj for obj in copy.items()}
    copy.subscribe(lambda _: seen.append(len(copy.by_index("letter", "a"))))
    seen = []
    await copy.replace(pages(*(pod(f"a{n}", 1 + n % 2) for n in range(100, 500))))
    assert set(seen) == {400}, "no subscriber sees half of the list"
    assert len(seen) == 100 + 100 + 200, "those that are gone, have changed, and are new"
    same = [obj for obj in copy.items() if obj is before.get(obj.metadata.name)]
    assert len(same) == 100


def test_what_is_handed_out_stays_what_it_is_while_the_store_changes():
    store = Indexer({"letter": by_letter})
    named = [PartialObjectMetadata(metadata=ObjectMeta(name=f"a{n}")) for n in range(20)]
    for count, obj in enumerate(named):
        handed = store.items(), store.by_index("letter", "a")
        store.put(obj)
        assert [len(each) for each in handed] == [count, count]
        assert [len(each) for each in (store.items(), store.by_index("letter", "a"))] == [count + 1, count + 1]
