"""Shows what is judged of the cases of exporters, over PYTHONPATH=tests:

uv run python tests/signals/show_cases.py                                  the table of all
uv run python tests/signals/show_cases.py a18-frozen-page                  that case with all its settings, over time
uv run python tests/signals/show_cases.py a14-false-zero-alone configured  and with these
… --windows                                                                and the windows after each collection
"""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Iterator

import structlog
from exporter_cases import load, runs
from judged_cases import Run, judge, judged, settings_of


def table() -> Iterator[str]:
    for name, settings in runs():
        run = judged(name, settings)
        worked, idle = (_counted(run.words(worked=each)) for each in (True, False))
        wrong = "   <-- WRONG" if any(run.wrong()) else ""
        yield f"{name:32} {settings:34} idle: {idle:44} busy: {worked}{wrong}"


def _counted(words: Counter[str]) -> str:
    return ", ".join(f"{word} {count}" for word, count in words.most_common()) or "-"


def one(name: str, *settings: str, windows: bool) -> Iterator[str]:
    case = load(name)
    yield f"{name}: {case.title}"
    for each in settings or case.settings:
        yield from _shown(each, asyncio.run(judge(case, settings_of(case, each), with_windows=windows)))


def _shown(settings: str, run: Run) -> Iterator[str]:
    for pod, verdicts in run.verdicts.items():
        yield f"\n{pod}, settings {settings}"
        before = None
        for each in verdicts:
            now = each.word, each.has_worked
            if now != before or each.windows:
                worked = "has worked" if each.has_worked else "idle"
                yield f"  after {each.collection:2} collections, {worked}: {each.word}; {each.decision.answer.message}"
                yield from each.windows
            before = now


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    names = [each for each in sys.argv[1:] if not each.startswith("-")]
    for line in one(*names, windows="--windows" in sys.argv) if names else table():
        sys.stdout.write(f"{line}\n")
