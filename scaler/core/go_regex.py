r"""Which Python pattern matches exactly what a regular expression of Prometheus matches?

Prometheus compiles with Go's RE2 and anchors: `^(?s:…)$`. Python's `re` reads most of that syntax, but not all of it
alike, and silently: `$` also matches before a last newline, `\d` and `\w` match every script, `{,3}` is a repetition,
`a++` is possessive. So the text is parsed by RE2's grammar and written anew for `re`.

Laws of this file:

* What RE2 refuses is refused: backreferences, lookaround, octal escapes, `a**`, `\Z`.
* What would match alike but can take exponential time in a backtracking engine is refused: a repetition without an
  upper bound around another one, such as `(a+)+`. Label values are written by tenants.
* The flags `m` and `U` and Unicode classes (`\p{…}`) are refused although RE2 has them: `re` has no equal.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_Ranges = tuple[tuple[int, int], ...]

_LAST = 0x10FFFF
_MOST_REPEATS = 1000
"""RE2's own limit for {n,m}."""


def _chars(*spans: str) -> _Ranges:
    return tuple(sorted((ord(span[0]), ord(span[-1])) for span in spans))


def _complement(ranges: _Ranges) -> _Ranges:
    """All code points outside of the sorted, disjoint ranges."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), _LAST]
    return tuple((low, high) for low, high in zip(starts, ends, strict=True) if low <= high)


# RE2's Perl classes are ASCII, and its \s has no vertical tab.
_PERL = {"d": _chars("09"), "w": _chars("09", "AZ", "_", "az"), "s": _chars("\t\n", "\f\r", " ")}
_PERL |= {letter.upper(): _complement(ranges) for letter, ranges in _PERL.items()}
_POSIX = {
    "alnum": _chars("09", "AZ", "az"),
    "alpha": _chars("AZ", "az"),
    "ascii": _chars("\x00\x7f"),
    "blank": _chars("\t", " "),
    "cntrl": _chars("\x00\x1f", "\x7f"),
    "digit": _chars("09"),
    "graph": _chars("!~"),
    "lower": _chars("az"),
    "print": _chars(" ~"),
    "punct": _chars("!/", ":@", "[`", "{~"),
    "space": _chars("\t\r", " "),
    "upper": _chars("AZ"),
    "word": _chars("09", "AZ", "_", "az"),
    "xdigit": _chars("09", "AF", "af"),
}
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ZERO_WIDTH = {"A": r"\A", "z": r"\Z", "b": r"(?a:\b)", "B": r"(?a:\B)"}

_REPEAT = re.compile(r"\*|\+|\?|\{(\d+)(?:(,)(\d*))?\}")
_GROUP = re.compile(r"\(\?P?<(?P<name>\w+)>|\(\?(?P<flags>[a-zA-Z-]*)(?P<end>[:)])|\((?!\?)", re.ASCII)
_HEX = re.compile(r"\\x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]+)\})")
_POSIX_CLASS = re.compile(r"\[:(\^?)(\w*):\]")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of the pattern, written for `re`."""

    text: str
    nullable: bool = False
    """Whether it can match without consuming anything."""
    unbounded: bool = False
    """Whether it holds a repetition without an upper bound."""
    repeatable: bool = True


_SPECIAL = {".": _Piece("."), "^": _Piece("^", nullable=True), "$": _Piece(r"\Z", nullable=True)}
"""Python's own $ also matches before a newline at the end."""


def compile_anchored(text: str) -> re.Pattern[str]:
    """The pattern whose `fullmatch` equals Prometheus' match of the regular expression.

    Raises: ValueError that says what cannot be used, and what to write instead where there is something.
    """
    pattern = f"(?s:{_Translator(text).whole()})"
    try:
        return re.compile(pattern)
    except (re.error, OverflowError) as error:
        reason = error.msg if isinstance(error, re.error) else str(error)
        raise ValueError(f"regex {text!r}: {reason}") from None


class _Translator:
    """One pass of recursive descent over RE2's syntax."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> str:
        body = self._alternatives()
        if self._at < len(self._text):
            raise self._refusal("')' closes nothing; write '\\)' for the character")
        return body.text

    def _refusal(self, what: str) -> ValueError:
        return ValueError(f"regex {self._text!r}, position {self._at}: {what}")

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        if match := pattern.match(self._text, self._at):
            self._at = match.end()
        return match

    # ---- structure

    def _alternatives(self) -> _Piece:
        """Everything up to the end of the group. Flags such as `(?i)` hold from where they stand to there."""
        branches: list[list[_Piece]] = [[]]
        flags: list[str] = []
        while self._at < len(self._text) and not self._peek(")"):
            if self._peek("|"):
                self._at += 1
                branches[-1].append(_Piece(")" * len(flags), nullable=True))
                branches.append([_Piece("".join(flags), nullable=True)])
                continue
            piece = self._repeated(self._atom())
            if not piece.repeatable:
                flags.append(piece.text)
            branches[-1].append(piece)
        branches[-1].append(_Piece(")" * len(flags), nullable=True))
        return _Piece(
            "|".join("".join(piece.text for piece in branch) for branch in branches),
            nullable=any(all(piece.nullable for piece in branch) for branch in branches),
            unbounded=any(piece.unbounded for branch in branches for piece in branch),
        )

    def _atom(self) -> _Piece:
        char = self._text[self._at]
        match char:
            case "(":
                return self._group()
            case "[":
                return _Piece(self._bracket())
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise self._refusal(f"nothing stands before {char!r} that it could repeat")
        self._at += 1
        return _SPECIAL.get(char) or _Piece(re.escape(char))

    def _group(self) -> _Piece:
        start = self._at
        opening = self._take(_GROUP)
        if opening is None:
            raise self._refusal("Prometheus knows no lookaround, conditionals or comments")
        if opening["end"] == ")":
            return _Piece(f"(?{self._flags(opening['flags'], start)}:", nullable=True, repeatable=False)
        body = self._alternatives()
        if not self._peek(")"):
            self._at = start
            raise self._refusal("'(' is never closed; write '\\(' for the character")
        self._at += 1
        return _Piece(f"{self._head(opening, start)}{body.text})", nullable=body.nullable, unbounded=body.unbounded)

    def _head(self, opening: re.Match[str], start: int) -> str:
        if name := opening["name"]:
            return f"(?P<{name}>"
        return f"(?{self._flags(opening['flags'], start)}:" if opening["end"] else "("

    def _flags(self, flags: str, start: int) -> str:
        on, _, off = flags.partition("-")
        if set(on + off) <= set("is") and flags.count("-") <= 1 and not flags.endswith("-"):
            return flags
        self._at = start
        raise self._refusal(f"the flags {flags!r} cannot be used; only i and s can")

    def _repeated(self, piece: _Piece) -> _Piece:
        start = self._at
        repeat = self._take(_REPEAT)
        if repeat is None:
            return piece
        if not piece.repeatable:
            self._at = start
            raise self._refusal(f"nothing stands before {repeat[0]!r} that it could repeat")
        lazy = self._peek("?")
        self._at += lazy
        if _REPEAT.match(self._text, self._at):
            raise self._refusal("a repetition is repeated; put the inner one in parentheses")
        unbounded = self._is_unbounded(repeat, start)
        if unbounded and (piece.unbounded or piece.nullable):
            self._at = start
            raise self._refusal(
                "an unlimited repetition of something that is itself unlimited, or may be empty, can take exponential "
                "time; write it without the nesting"
            )
        nullable = piece.nullable or repeat[0] in "*?" or int(repeat[1] or 1) == 0
        text = f"{piece.text}{repeat[0]}{'?' if lazy else ''}"
        return _Piece(text, nullable=nullable, unbounded=unbounded or piece.unbounded)

    def _is_unbounded(self, repeat: re.Match[str], start: int) -> bool:
        least, comma, most = repeat.groups()
        if least is None:
            return repeat[0] != "?"
        if int(least) > _MOST_REPEATS or int(most or 0) > _MOST_REPEATS or (most and int(most) < int(least)):
            self._at = start
            raise self._refusal(f"the repetition {repeat[0]} is not within 0 to {_MOST_REPEATS}")
        return bool(comma) and not most

    # ---- characters

    def _escape(self) -> _Piece:
        letter = self._text[self._at + 1 : self._at + 2]
        if letter in _PERL:
            self._at += 2
            return _Piece(f"[{_written(_PERL[letter])}]")
        if letter in _ZERO_WIDTH:
            self._at += 2
            return _Piece(_ZERO_WIDTH[letter], nullable=True)
        if letter == "Q":
            return self._quoted()
        return _Piece(re.escape(self._escaped_char()))

    def _quoted(self) -> _Piece:
        r"""`\Q…\E`: its characters become escaped ones, so that a repetition behind it repeats the last of them."""
        literal, _, rest = self._text[self._at + 2 :].partition(r"\E")
        escaped = "".join(char if char.isalnum() or not char.isascii() else rf"\x{ord(char):02x}" for char in literal)
        self._text, self._at = escaped + rest, 0
        if not self._text or self._text[0] in "|)*+?":
            return _Piece("", nullable=True)
        return self._atom()

    def _escaped_char(self) -> str:
        if code := self._take(_HEX):
            value = int(code[1] or code[2], 16)
            if value <= _LAST:
                return chr(value)
        char = self._text[self._at + 1 : self._at + 2]
        if char.isdigit():
            raise self._refusal(f"'\\{char}' would be a backreference or an octal escape; write a byte as '\\x41'")
        if char in _CONTROLS:
            self._at += 2
            return _CONTROLS[char]
        if not char or not char.isascii() or char.isalnum():
            raise self._refusal(f"the escape '\\{char}' is not known")
        self._at += 2
        return char

    def _bracket(self) -> str:
        start = self._at
        self._at += 1
        negated = self._peek("^")
        self._at += negated
        parts, first = "", True
        while first or not self._peek("]"):
            if self._at >= len(self._text):
                self._at = start
                raise self._refusal("'[' is never closed; write '\\[' for the character")
            parts += _written(self._class_item())
            first = False
        self._at += 1
        return f"[{'^' if negated else ''}{parts}]"

    def _class_item(self) -> _Ranges:
        if posix := self._take(_POSIX_CLASS):
            if posix[2] not in _POSIX:
                raise self._refusal(f"the character class {posix[0]} is not known")
            ranges = _POSIX[posix[2]]
            return _complement(ranges) if posix[1] else ranges
        letter = self._text[self._at + 1 : self._at + 2]
        if self._peek("\\") and letter in _PERL:
            self._at += 2
            return _PERL[letter]
        low = self._class_char()
        if not self._peek("-") or self._peek("-]"):
            return ((ord(low), ord(low)),)
        self._at += 1
        high = self._class_char()
        if high < low:
            raise self._refusal(f"the range {low}-{high} runs backwards")
        return ((ord(low), ord(high)),)

    def _class_char(self) -> str:
        if self._at >= len(self._text):
            raise self._refusal("'[' is never closed; write '\\[' for the character")
        if self._peek("\\"):
            return self._escaped_char()
        self._at += 1
        return self._text[self._at - 1]


def _written(ranges: Iterable[tuple[int, int]]) -> str:
    """The ranges as they stand within a bracket of `re`."""
    return "".join(
        re.escape(chr(low)) if low == high else f"{re.escape(chr(low))}-{re.escape(chr(high))}" for low, high in ranges
    )
