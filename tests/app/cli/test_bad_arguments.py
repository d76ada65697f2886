"""Whatever is wrong with an argument: one line that names it, no library's words, and nothing is read before."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from app.cli.command import Done, command

LIBRARY = re.compile(
    r"Traceback|isoformat|codec|\bobject\b.*(does not|has no|is not)|subscriptable|\[Errno|Input should|"
    r"instance of|<class|Python int|timedelta|out of range for|value out of range|could not convert|invalid literal|"
    r"truncated|yaml\.|msgspec|unhashable|NoneType|strptime|while parsing"
)
NO_API = "http://127.0.0.1:1"
KUBECONFIG = f"""
current-context: a
contexts: [{{name: a, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "{NO_API}"}}}}]
users: [{{name: u, user: {{}}}}]
"""
Files = Callable[[str, bytes | str], str]


@pytest.fixture
def file(tmp_path: Path) -> Files:
    def written(name: str, content: bytes | str) -> str:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return written


def is_refused(done: Done, *names: str) -> None:
    """In one sentence that has these in it."""
    assert (done.status, done.out) == (2, ""), done
    assert done.err.startswith("error: "), done.err
    assert len(done.err.strip().splitlines()) == 1, done.err
    assert not LIBRARY.search(done.err), done.err
    for name in names:
        assert name in done.err


# ---- files

CONTENTS: Mapping[str, bytes | str] = {
    "not UTF-8": b"a: \xff\xfe\n",
    "UTF-16": "a: b\n".encode("utf-16"),
    "binary": b"\x00\x01\x02",
    "empty": "",
    "null": "null",
    "a list": "- a\n- b\n",
    "a word": "hello\n",
    "a number": "5",
    "YAML that does not end": "a: [1, 2\n",
    "JSON that does not end": '{"a": ',
    "JSON of another kind": '{"items": 5}',
    "nested": "[" * 200,
    "no day": "a: 2026-02-30\n",
    "a list as key": "? [a]\n: b\n",
}
READERS: Mapping[str, Sequence[str]] = {
    "simulate --trace": ("simulate", "--trace"),
    "simulate --workloads": ("simulate", "--gpus", "8", "--workloads"),
    "simulate -f": ("simulate", "--trace", "/nowhere.csv", "-f"),
    "policy test -f": ("policy", "test", "-f"),
    "--kubeconfig of doctor": ("doctor", "--kubeconfig"),
    "--kubeconfig of keep": ("keep", "a/b", "--for", "1h", "--kubeconfig"),
    "--kubeconfig of explain": ("explain", "a/b", "--kubeconfig"),
    "--config of report": ("report", "--config"),
    "--config of doctor": ("doctor", "--config"),
}
LACK_NOTHING = {("--config of report", each) for each in ("empty", "null")}
"""Settings may be left out."""


ALIKE = {"simulate -f", "--kubeconfig of keep", "--kubeconfig of explain", "--config of doctor"}
"""What reads as another one of them does: one content that cannot be used is enough."""


@pytest.mark.parametrize(
    ("reader", "content"),
    [(reader, each) for reader in READERS for each in CONTENTS if reader not in ALIKE or each == "binary"],
)
def test_a_file_that_cannot_be_used_is_named_in_a_sentence(reader: str, content: str, file: Files) -> None:
    path = file("given", CONTENTS[content])
    done = command(*READERS[reader], path)
    is_refused(done, *(() if (reader, content) in LACK_NOTHING else (path,)))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["nowhere.yaml", "x" * 300, "nowhere/x.yaml"])
def test_a_file_that_is_not_there_is_named(reader: str, name: str, tmp_path: Path) -> None:
    is_refused(command(*READERS[reader], str(tmp_path / name)), str(tmp_path / name)[:100])


@pytest.mark.parametrize("reader", [each for each in READERS if " -f" not in each])
def test_a_folder_is_no_file(reader: str, tmp_path: Path) -> None:
    is_refused(command(*READERS[reader], str(tmp_path)), str(tmp_path))


ENTRIES: Mapping[str, str] = {
    "no context": "apiVersion: v1\nkind: Config\n",
    "contexts that are a word": "contexts: hello\n",
    "a context that is a number": "contexts: [5]\ncurrent-context: a\n",
    "a context that is not there": KUBECONFIG.replace("current-context: a", "current-context: other"),
    "a cluster that is not there": KUBECONFIG.replace("cluster: c, user", "cluster: other, user"),
    "a cluster that is a number": KUBECONFIG.replace(f'{{server: "{NO_API}"}}', "5"),
    "users that are a number": KUBECONFIG.replace("[{name: u, user: {}}]", "5"),
    "a server that is a number": KUBECONFIG.replace(f'"{NO_API}"', "5"),
    "a plugin that is a number": KUBECONFIG.replace("user: {}", "user: {exec: 5}"),
    "a plugin without a command": KUBECONFIG.replace("user: {}", "user: {exec: {}}"),
    "a token that is a number": KUBECONFIG.replace("user: {}", "user: {token: 5}"),
}


def test_a_kubeconfig_in_which_kubectl_has_written_null_is_one(file: Files) -> None:
    path = file("kubeconfig", KUBECONFIG.replace("[{name: u, user: {}}]", "null").replace(", user: u", ""))
    done = command("doctor", "--kubeconfig", path)
    assert (done.status, done.err) == (1, "")
    assert f"Unreachable: get /version at {NO_API}" in done.out


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES.keys())
@pytest.mark.parametrize("verb", [("doctor",), ("explain", "a/b")], ids=" ".join)
def test_a_kubeconfig_that_is_none_is_named_and_says_where(verb: Sequence[str], entry: str, file: Files) -> None:
    path = file("kubeconfig", entry)
    is_refused(command(*verb, "--kubeconfig", path), path)


SETTINGS: Mapping[str, str] = {
    "prometheus": "prometheus: 5",
    "prometheus.url": "prometheus: {url: [a]}",
    "prometheus.matchers": "prometheus: {matchers: [1]}",
    "defaults": "defaults: [a]",
    "defaults.idleAfter": "defaults: {idleAfter: 2026-01-01}",
    "signals": "signals: 5",
    "signals.0": "signals: [5]",
    "dcgm.endpoints": "dcgm: {endpoints: 5}",
    "gpuResources": "gpuResources: {a: b}",
    "metrics.prices.a": "metrics: {prices: {a: b}}",
    "hooks": "hooks: 5",
    "notifications.targets": "notifications: {targets: 5}",
    "kubernetes.kubeconfig": "kubernetes: {kubeconfig: 5}",
    "evaluation.maxWindow": "evaluation: {maxWindow: -1}",
    "log.level": "log: {level: loud}",
    "nonsense": "nonsense: 1",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_of_another_type_is_named(setting: str, file: Files) -> None:
    path = file("settings.yaml", SETTINGS[setting])
    is_refused(command("report", "--config", path), path, f": {setting}: ")


@pytest.mark.parametrize("verb", [("run",), ("simulate", "--since", "1h"), ("simulate", "--gpus", "8")], ids=" ".join)
def test_verbs_with_settings_name_one_of_another_type(verb: Sequence[str], file: Files) -> None:
    path = file("settings.yaml", SETTINGS["defaults.idleAfter"])
    is_refused(command(*verb, "--config", path), path, ": defaults.idleAfter: ")


TRACES: Mapping[str, str] = {
    "created": "x,a,1,5",
    "created'": "1e400,a,1,5",
    "created''": "2026-02-30,a,1,5",
    "gpus": "1,a,x,5",
    "seconds": "1,a,1,x",
    "it ran for": "1,a,1,1e300",
    "fewer values": "1,a",
    "priority": "1,a,1,5,x",
}


@pytest.mark.parametrize("word", TRACES)
def test_a_line_of_workloads_that_is_none_is_named(word: str, file: Files) -> None:
    path = file(
        "jobs.csv",
        f"created,name,gpus,seconds,priority\n{TRACES[word]}{',0' if TRACES[word].count(',') == 3 else ''}\n",
    )
    is_refused(command("simulate", "--gpus", "8", "--workloads", path), path, "line 2", word.rstrip("'"))


# ---- words

TIMES = ("yesterday", "2026-13-01", "2026-02-30T00:00:00Z", "99999-01-01", "2026-12-01T00:00:00+99:99", "\x1b[2K", "١٢")
BEYOND = "9999-12-31T23:59:59-14:00"
LENGTHS = ("soon", "5", "1e9d", "5 minutes", "99999999999d")
SHARES = ("5", "500%", "nan%", "x%")
QUOTAS = ("x", "-1", "a=x", "a=", "1e3")
NAMES = ("a", "/", "a/", "/b")
OF_SIMULATE = ("simulate", "--trace", "/nowhere.csv")
OF_REPORT = ("report", "--prometheus-url", NO_API)
WORDS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "keep --until": (("keep", "a/b"), (*TIMES, BEYOND)),
    "exclude --until": (("exclude", "a/b"), (*TIMES, BEYOND)),
    "report --until": (OF_REPORT, (*TIMES, BEYOND)),
    "keep --for": (("keep", "a/b"), LENGTHS),
    "exclude --for": (("exclude", "a/b"), LENGTHS),
    "report --since": (OF_REPORT, LENGTHS),
    "simulate --since": (("simulate", "--prometheus-url", NO_API), LENGTHS),
    "simulate --idle-after": (OF_SIMULATE, LENGTHS),
    "simulate --warm-up": (OF_SIMULATE, LENGTHS[:4]),
    "simulate --accept-regret": (OF_SIMULATE, SHARES),
    "simulate --floors": (OF_SIMULATE, SHARES),
    "simulate --active-above": (OF_SIMULATE, ("500%", "nan%", "x%")),
    "simulate --html": (OF_SIMULATE, ("/nowhere/x", "/proc")),
    "simulate --csv": (OF_SIMULATE, ("/nowhere/x", "/proc")),
    "report --html": (OF_REPORT, ("/nowhere/x", "/proc")),
    "report --focus": (OF_REPORT, ("/nowhere/x", "/proc")),
    "simulate --gpus": (("simulate", "--workloads", "/nowhere.csv"), QUOTAS),
    "simulate --compare": (("simulate", "--workloads", "/nowhere.csv", "--gpus", "8"), ("x", "always,")),
    "run --log-level": (("run",), ("loud",)),
    "run --log-format": (("run",), ("x",)),
    "run --components": (("run",), ("x",)),
}


@pytest.mark.parametrize(
    ("verb", "flag", "word"),
    [(verb, key.split()[-1], word) for key, (verb, words) in WORDS.items() for word in words],
    ids=[f"{key} {word}"[:60] for key, (_, words) in WORDS.items() for word in words],
)
def test_a_word_that_means_nothing_is_refused_by_its_flag_before_anything_is_read(
    verb: Sequence[str], flag: str, word: str
) -> None:
    """The files that are named beside it are not there, and nothing answers at the addresses."""
    done = command(*verb, flag, word)
    is_refused(done, flag)
    assert "/nowhere.csv" not in done.err


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("verb", ["explain", "plan", "wake", "suspend", "history", "exclude"])
def test_a_name_without_namespace_is_refused(verb: str, name: str) -> None:
    is_refused(command(verb, name), repr(name), "NAMESPACE/NAME")
