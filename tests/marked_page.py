"""Pages of which parts are made of the program itself: those between `<!-- NAME -->` and `<!-- /NAME -->`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedPage:
    """A page, and what belongs between which marks."""

    path: Path
    sections: Mapping[str, Callable[[], str]]

    def shown(self, name: str) -> str:
        """What the page has between the marks. Raises: ValueError where they are not there."""
        return _parts(self.path.read_text(encoding="utf-8"), name)[1]

    def rewrite(self) -> None:
        """Put between all marks what belongs there."""
        text = self.path.read_text(encoding="utf-8")
        for name, made in self.sections.items():
            before, _, after = _parts(text, name)
            text = before + made() + after
        self.path.write_text(text, encoding="utf-8")


def _parts(text: str, name: str) -> tuple[str, str, str]:
    """What comes up to the first mark, between both, and from the second one on."""
    mark = f"<!-- {name} -->\n"
    begin, end = text.index(mark) + len(mark), text.index(f"<!-- /{name} -->\n")
    return text[:begin], text[begin:end], text[end:]
