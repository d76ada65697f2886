"""The tables that modules document themselves by, so that tests can be held to every line of them."""

from types import ModuleType


def rows(module: ModuleType, *headings: str) -> list[tuple[str, ...]]:
    """The lines of the table in the module's docstring whose headings begin with these, cell by cell."""
    lines = [line.strip() for line in (module.__doc__ or "").splitlines()]
    cells = [
        tuple(each.strip() for each in line.strip("|").split("|")) if line.startswith("|") else () for line in lines
    ]
    start = next(number for number, row in enumerate(cells) if row[: len(headings)] == headings)
    found = []
    for row in cells[start + 2 :]:
        if not row:
            break
        found.append(row)
    return found
