"""Each reason has one row, and what asks about reasons reads it: no module keeps a list of its own."""

import ast
from enum import StrEnum
from pathlib import Path

import pytest

from scaler.decision.reasons import FOUND_IDLE, REASONS, STATES, CandidateState, DecisionReason, row_of
from scaler.idleness.reasons import DOUBTS, UnknownReason, check_complete

ROOT = Path(__file__).parent.parent.parent
TABLES = {"scaler/decision/reasons.py": {"REASONS"}, "scaler/idleness/reasons.py": {"DOUBTS"}}
WORDS = {"DecisionReason", "UnknownReason"}


def test_a_reason_without_a_row_is_an_error_at_import() -> None:
    for words, table in ((DecisionReason, REASONS), (CandidateState, STATES), (UnknownReason, DOUBTS)):
        assert set(table) == set(words)
        one = next(iter(words))
        with pytest.raises(TypeError, match=f"{words.__name__} without a row: {one}"):
            check_complete(words, table.keys() - {one})


def test_a_reason_that_comes_needs_nothing_but_its_row() -> None:
    more = StrEnum("DecisionReason", [*((each.name, str(each)) for each in DecisionReason), ("NEW", "New")])
    with pytest.raises(TypeError, match="DecisionReason without a row: New"):
        check_complete(more, REASONS)
    check_complete(more, {**REASONS, "New": row_of("no reason")})


def test_only_what_frees_its_gpus_was_found_idle() -> None:
    assert {"GPUsIdle", "Reclaimed"} == FOUND_IDLE
    assert all(row.frees and row.warns for row in REASONS.values() if row.found_idle)


def test_what_does_not_let_it_be_suspended_is_of_no_state_in_which_keda_gets_0() -> None:
    for row in REASONS.values():
        assert not (row.holds and (row.found_idle or (row.state and STATES[row.state].may_suspend)))


def lists_of_reasons(tree: ast.AST) -> list[int]:
    """Lines of displays that hold two reasons or more: sets, dicts by their keys, tuples and lists."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Dict(keys=several):
                pass
            case ast.Set(elts=several) | ast.Tuple(elts=several) | ast.List(elts=several):
                pass
            case _:
                continue
        if sum(_is_reason(each) for each in several) > 1:
            found.append(node.lineno)
    return found


def _is_reason(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in WORDS


def test_a_list_of_reasons_is_found() -> None:
    assert lists_of_reasons(ast.parse("A = frozenset({DecisionReason.KEPT, DecisionReason.WAKING})")) == [1]
    assert lists_of_reasons(ast.parse("A = {UnknownReason.NO_SAMPLES: 1, UnknownReason.COLD_START: 2}")) == [1]
    assert not lists_of_reasons(ast.parse("A = {DecisionReason.KEPT: 1}; B = (DecisionReason.KEPT, 'warn')"))


def test_no_module_keeps_a_list_of_reasons_beside_the_tables() -> None:
    found = []
    for path in sorted(ROOT.glob("scaler/**/*.py")):
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        own = TABLES.get(name, set())
        for node in ast.parse(text).body if any(f"{each}." in text for each in WORDS) else ():
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in own:
                continue
            found += [f"{name}:{line}" for line in lists_of_reasons(node)]
    assert found == []
