import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.go_regex import compile_anchored

MATCHES = {
    "the whole text must match": ("pod", "pod", True),
    "a prefix is not enough": ("pod", "pod-1", False),
    "alternatives are anchored together": ("a|b", "ab", False),
    "an alternative may be longer than one that matches first": ("a|ab", "ab", True),
    "a dot matches a newline": ("a.b", "a\nb", True),
    "a dollar does not match before a last newline": ("a$", "a\n", False),
    "a digit is ASCII": (r"\d", "٣", False),
    "a word character is ASCII": (r"\w", "é", False),
    "white space excludes the vertical tab": (r"\s", "\v", False),
    "white space includes the form feed": (r"\s", "\f", True),
    "not white space includes the vertical tab": (r"\S", "\v", True),
    "a class may hold a class": (r"[\d_]+", "1_2", True),
    "a class may hold a negated class": (r"[\D]", "é", True),
    "a negated class of a class": (r"[^\w]", "é", True),
    "a POSIX class": ("[[:alpha:]_]+", "a_Z", True),
    "a negated POSIX class": ("[[:^alpha:]]", "1", True),
    "a bracket first in a class is itself": ("[]a]+", "]a", True),
    "a bracket within a class is itself": ("[[a]+", "[a", True),
    "a dash last in a class is itself": ("[a-]+", "-a", True),
    "a class negated matches newlines": ("[^a]", "\n", True),
    "a brace that opens no repetition is itself": ("a{,3}", "a{,3}", True),
    "a repetition has bounds": ("a{2,3}", "aaaa", False),
    "flags hold from where they stand": ("a(?i)b|c", "C", True),
    "flags do not hold before they stand": ("a(?i)b", "AB", False),
    "flags end with their group": ("(a(?i)b)c", "aBC", False),
    "a group has its own flags": ("(?i:a)b", "Ab", True),
    "case is folded beyond ASCII": ("(?i)é", "É", True),
    "quoted text is literal": (r"\Qa.b\E+", "a.bb", True),
    "quoted text may end with the expression": (r"\Qa(b", "a(b", True),
    "punctuation may be escaped": (r"a\-b\_c\/d", "a-b_c/d", True),
    "code points in hexadecimal": (r"\x41\x{1F600}", "A😀", True),
    "a word boundary is ASCII": (r"a\bé", "aé", True),
    "the start and the end": (r"\Aa\z", "a", True),
    "lazy repetitions": ("(a+?)(a*)", "aaa", True),
    "a named group": ("(?P<node>.+)", "n", True),
    "a named group of newer Go": ("(?<node>.+)", "n", True),
    "nothing matches nothing": ("", "", True),
}


@pytest.mark.parametrize(("regex", "text", "expected"), MATCHES.values(), ids=MATCHES.keys())
def test_matches_as_prometheus_does(regex: str, text: str, expected: bool) -> None:
    assert bool(compile_anchored(regex).fullmatch(text)) is expected


REFUSED = {
    "a backreference": (r"(a)\1", "backreference"),
    "an octal escape": (r"\012", "octal"),
    "lookahead": ("(?=a)", "lookaround"),
    "negative lookbehind": ("(?<!a)b", "lookaround"),
    "a named backreference": ("(?P<a>x)(?P=a)", "lookaround"),
    "a comment": ("(?#note)", "comments"),
    "an atomic group": ("(?>a)", "lookaround"),
    "a possessive repetition": ("a++", "a repetition is repeated"),
    "a repetition repeated": ("a{2}{3}", "a repetition is repeated"),
    "a lazy repetition repeated": ("a*??", "a repetition is repeated"),
    "a repetition of nothing": ("*a", "could repeat"),
    "a repetition of a flag": ("(?i)*a", "could repeat"),
    "too many repetitions": ("a{1001}", "1000"),
    "a repetition that runs backwards": ("a{3,2}", "1000"),
    "an end that is Python's": (r"a\Z", r"'\\Z' is not known"),
    "an escape that is Python's": ("\\u0041", r"'\\u' is not known"),
    "an escaped letter": (r"\q", r"'\\q' is not known"),
    "an escape of nothing": ("a\\", "is not known"),
    "a Unicode class": (r"\pL", "is not known"),
    "an unknown POSIX class": ("[[:letter:]]", "is not known"),
    "a class that is not closed": ("[a", "never closed"),
    "an empty class": ("[]", "never closed"),
    "a range that runs backwards": ("[z-a]", "backwards"),
    "a group that is not closed": ("(a", "never closed"),
    "a group that is not opened": ("a)", "closes nothing"),
    "an unsupported flag": ("(?m)a", "only i and s"),
    "a flag of Python's": ("(?x)a", "only i and s"),
    "nested repetitions": ("(a+)+b", "exponential"),
    "nested repetitions behind alternatives": ("(?:x|(?:ab*))*", "exponential"),
    "a repetition of what may be empty": ("(a?)*", "exponential"),
    "one name for two groups": ("(?P<a>x)(?P<a>y)", "redefinition"),
}


@pytest.mark.parametrize(("regex", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_with_the_reason(regex: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        compile_anchored(regex)


def test_a_refusal_says_where() -> None:
    with pytest.raises(ValueError, match=re.escape("regex 'pod-(a+)+', position 8:")):
        compile_anchored("pod-(a+)+")


@given(st.text(max_size=20))
def test_escaped_text_matches_only_itself(text: str) -> None:
    escaped = "".join(rf"\x{{{ord(char):x}}}" for char in text)
    pattern = compile_anchored(escaped)
    assert pattern.fullmatch(text)
    assert not pattern.fullmatch(text + "x")


@given(st.text(alphabet=r"ab1(|)[]{}*+?.,^$\-:isPQEdDwWsSbBAz<>=! ", max_size=12))
def test_every_text_compiles_or_is_refused_and_nothing_else(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            compile_anchored(text).fullmatch("ab1ab1")
        except ValueError as error:
            refusal = str(error)
        else:
            refusal = "regex "
    assert refusal.startswith("regex ")
