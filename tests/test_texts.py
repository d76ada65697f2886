"""No text that the program has written is searched, split or matched by it: what follows from a cause is in a field.

Whoever changes the words of a message must not change a metric, a page or a decision. What is read all the same is the
text of others, for which there is no other way: each place says whose.
"""

import ast
import re
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OF_OTHERS = {
    "scaler/admission/controller.py:_is_news": "Kueue's message of a check that it has reset",
    "scaler/admission/provisioning/requests.py:_eta": "an autoscaler's, which has no field for when nodes come",
    "scaler/admission/workload.py:preemptor_of": "Kueue's, of who has preempted a Workload",
    "scaler/app/cli/forward.py:_unreachable": "kubectl's, of which the last line is shown",
    "scaler/app/settings/load.py:_words": "pydantic's, which speaks of its types",
    "scaler/documents.py:unreadable": "msgspec's, which has the place at its end",
    "scaler/idleness/relabel.py:_compiled": "RE2's, which repeats the whole expression",
    "scaler/doctor/calls/probe.py:_fault": "gRPC's, of a connection that failed",
    "scaler/doctor/calls/probe.py:_connection_fault": "gRPC's, of a connection that failed",
    "scaler/kube/access.py:_from_kubeconfig": "the Kubernetes client's, which has line breaks",
    "scaler/kube/api_requests.py:refusal": "the API server's, of what it does not serve or grant",
    "scaler/multikueue/hub/dispatch/preflight.py:judged": "the API server's, of a write that it refuses",
    "scaler/samples/prometheus.py:_speaks_of_names": "a source's, of a query that it refuses",
    "scaler/samples/transport.py:_root_cause": "urllib3's, of a connection that failed",
}
NO_TEXTS = {
    "scaler/app/cli/layout.py:_table": "the numbers of columns",
    "scaler/multikueue/hub/dispatch/plan.py:plan": "uids",
    "scaler/doctor/scaled_objects.py:_needs_keda": "a mapping",
    "scaler/reporting/waiting_reasons.py:_with_quota": "a mapping",
}
TEXTS = re.compile(r"(.*_)?(message|error|words|why|problem|said|details?|sentence|explanation|cause|asked|note)")
READS = {
    *("split", "rsplit", "partition", "rpartition", "splitlines", "find", "rfind", "index", "rindex", "count"),
    *("startswith", "endswith", "removeprefix", "removesuffix", "replace"),
}
MATCHES = {"search", "match", "fullmatch", "findall", "finditer", "sub", "split"}


def is_text(node: ast.AST, known: Set[str]) -> bool:
    """Whether it is named as a sentence is, is the words of an error, or was taken from one of these."""
    match node:
        case ast.Name(id=name):
            return name in known or TEXTS.fullmatch(name) is not None
        case ast.Attribute(attr=name) | ast.Call(func=ast.Name(id=name), args=[]):
            return TEXTS.fullmatch(name) is not None
        case ast.Call(func=ast.Name(id="str"), args=[given]):
            return is_text(given, known)
        case ast.Call(func=ast.Name(id=name), args=[_, *_]):
            return TEXTS.fullmatch(name) is not None
        case ast.Call(func=ast.Attribute(value=given, attr="lower" | "strip" | "casefold")):
            return is_text(given, known)
        case ast.IfExp(body=first, orelse=second) | ast.BoolOp(values=[first, *_, second]):
            return is_text(first, known) or is_text(second, known)
    return False


def is_read(node: ast.AST, known: Set[str]) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=text, attr=verb), keywords=[]) if verb in READS and is_text(text, known):
            return True
        case ast.Call(func=ast.Attribute(attr=verb), args=[*_, text]) if verb in MATCHES and is_text(text, known):
            return True
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[text]):
            return is_text(text, known)
        case ast.Compare(ops=[ast.Eq() | ast.NotEq()], left=text, comparators=[ast.Constant(value=str(value))]):
            return bool(value) and is_text(text, known)
    return False


def readers(tree: ast.AST, function: str = "", known: Set[str] = frozenset()) -> Iterator[str]:
    """The functions that read a text."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from readers(node, node.name, _taken_from_texts(node))
            continue
        if is_read(node, known):
            yield function
        yield from readers(node, function, known)


def _taken_from_texts(function: ast.AST) -> Set[str]:
    given = [each for each in ast.walk(function) if isinstance(each, ast.Assign)]
    taken = [each.targets for each in given if is_text(each.value, frozenset())]
    return {each.id for targets in taken for each in targets if isinstance(each, ast.Name)}


PARSED = {
    "a word of a message": "def f(line):\n    return 'demand query' in line.message",
    "a word that was taken from one": "def f(b):\n    a = b.message if b else ''\n    return W in a",
    "the text of an error": "def f(error):\n    text = str(error)\n    return text.replace('trigger metadata', 'spec')",
    "a pattern": "def f(error):\n    return re.sub(PATTERN, 'spec', str(error))",
    "its begin": "def f(doubt):\n    return doubt.message.startswith('no ')",
    "its parts": "def f(self):\n    return self.words.partition('  ')[0]",
    "all of it": "def f(self):\n    return self.message == 'no demand'",
}


@pytest.mark.parametrize("source", PARSED.values(), ids=PARSED)
def test_a_text_that_is_read_is_found(source: str) -> None:
    assert [*readers(ast.parse(source))] == ["f"]


def test_texts_that_are_made_are_not_read() -> None:
    assert not [*readers(ast.parse("def f(error, key):\n    if not error.message:\n        return f'{key}: {error}'"))]


def test_only_texts_of_others_are_read() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{name}"
        for path in (*ROOT.glob("scaler/**/*.py"), *ROOT.glob("analysis/**/*.py"))
        for name in readers(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == OF_OTHERS.keys() | NO_TEXTS.keys()


# ---------------------------------------------------------------------------------------------------------- docstrings

PLACES = ("scaler", "analysis", "sandbox", "dashboards", "deploy", "docs", "benchmarks")
WITHOUT_SUBJECT = re.compile(
    r"(Of|By|The same|As|With|Without|From|In|Into|For|To|At|On|Over|Under|Within|Between|Among|Beside|Below|Above"
    r"|Per|Until|After|Before|Since|While|Once|Up|About|Where|Whose|Whom|That|Those|None|Nothing|Not|Never|Only|Also"
    r"|But|And|Or|Then|So|Than|Too|Called|Instead)\b"
)


def described(tree: ast.AST) -> Iterator[str]:
    """All docstrings, and the strings below fields and constants."""
    for node in ast.walk(tree):
        for each in getattr(node, "body", None) or [] if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                yield each.value.value


def test_what_describes_something_names_it() -> None:
    found = []
    for path in sorted(path for place in PLACES for path in ROOT.glob(f"{place}/**/*.py")):
        texts = described(ast.parse(path.read_text(encoding="utf-8")))
        found += [f"{path.relative_to(ROOT)}: {text}" for text in texts if WITHOUT_SUBJECT.match(text)]
    assert found == []


def test_a_fragment_is_seen() -> None:
    code = '''class A:
    """By name."""
    b: int = 0
    """Of bees."""
    c: int = 1
    """Office hours."""
    d: int | None = None
    """None where nobody counts."""
'''
    assert [bool(WITHOUT_SUBJECT.match(text)) for text in described(ast.parse(code))] == [True, True, False, True]
