"""What Grafana would show, as pages that need no Grafana: for whoever works on the dashboards, and for tests.

    uv run python -m dashboards.preview --prometheus http://127.0.0.1:9090 --out /tmp/preview --since 30m

Writes one page per dashboard and theme (`fleet.light.html`, `fleet.dark.html`, …), drawn from grafana/*.json with all
variables at *All*. The pictures are simpler than Grafana's; the queries, names, units and colours are the dashboards'.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from html import escape
from json import JSONDecodeError
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

from dashboards.answers import EVERYTHING, Asker, Series
from dashboards.build import FOLDER
from dashboards.drawing import Frame, draw

THEMES = ("light", "dark")
_COLUMN, _ROW, _GAP = 62, 34, 8
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_STYLE = (Path(__file__).parent / "preview.css").read_text(encoding="utf-8")


def pages(asker: Asker) -> Iterator[tuple[str, str]]:
    """The name of every page, and the page."""
    for path in sorted(FOLDER.glob("*.json")):
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        answers = {id(panel): _answers(panel, asker) for panel in dashboard["panels"]}
        for theme in THEMES:
            yield f"{path.stem}.{theme}.html", _page(dashboard, answers, theme, asker)


def _answers(panel: Mapping[str, Any], asker: Asker) -> list[list[Series]]:
    return [asker.ask(target) for target in panel.get("targets", ())]


def _page(dashboard: Mapping[str, Any], answers: Mapping[int, list[list[Series]]], theme: str, asker: Asker) -> str:
    panels = [_placed(panel, answers[id(panel)], asker) for panel in dashboard["panels"]]
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    title, about = escape(dashboard["title"]), escape(dashboard["description"])
    return (
        f'<!doctype html><html lang="en" data-theme="{theme}"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style><body><header><h1>{title}</h1><p>{about}</p></header>"
        f'<main style="height:{bottom * _ROW}px">{"".join(panels)}</main></body></html>'
    )


def _placed(panel: Mapping[str, Any], found: list[list[Series]], asker: Asker) -> str:
    at = panel["gridPos"]
    width, height = at["w"] * _COLUMN - _GAP, at["h"] * _ROW - _GAP
    box = f"left:{at['x'] * _COLUMN}px;top:{at['y'] * _ROW}px;width:{width}px;height:{height}px"
    title = escape(panel["title"])
    if panel["type"] == "row":
        return f'<section class="row" style="{box}">{title}</section>'
    frame = Frame(width=width - 18, height=height - 34, start=asker.start, end=asker.end, step=asker.step)
    inside = draw(panel, found, frame)
    question = escape(panel["description"], quote=True)
    return f'<section style="{box}" title="{question}"><h2>{title}</h2>{inside}</section>'


def _seconds(text: str) -> float:
    """Raises: ArgumentTypeError."""
    if text[-1:] not in _UNITS or not text[:-1].isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: write a number and s, m, h or d, such as 30m")
    return float(text[:-1]) * _UNITS[text[-1]]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Draw the dashboards from a Prometheus, without Grafana.")
    parser.add_argument("--prometheus", required=True, metavar="URL")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument(
        "--since", default="1h", type=_seconds, metavar="DURATION", help="how far to look back (default: 1h)"
    )
    parser.add_argument("--var", action="append", default=[], metavar="NAME=VALUE", help="instead of All")
    parser.add_argument("--rate-interval", default="4m", metavar="DURATION", help="at least four scrape intervals")
    chosen = parser.parse_args()
    now = time.time()
    asker = Asker(
        url=chosen.prometheus,
        start=now - chosen.since,
        end=now,
        variables=EVERYTHING | dict(each.split("=", 1) for each in chosen.var),
        rate_interval=chosen.rate_interval,
    )
    try:
        _write(pages(asker), chosen.out)
    except (OSError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {_problem(error, chosen.prometheus)}\n")


def _write(drawn: Iterator[tuple[str, str]], folder: Path) -> None:
    """Raises: OSError, ValueError for what cannot be asked or written."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in drawn:
        (folder / name).write_text(page, encoding="utf-8")
        print(folder / name)


def _problem(error: OSError | ValueError, url: str) -> str:
    """What went wrong, where, and what to do about it."""
    match error:
        case HTTPError():
            return f"{url} answers {error.code} {error.reason}: is that the address of a Prometheus?"
        case URLError():
            return f"{url} cannot be reached ({error.reason}): is Prometheus running, and is the address right?"
        case TimeoutError():
            return f"{url} does not answer in time: ask for less with --since"
        case JSONDecodeError():
            return f"{url} answers something that is no JSON: is that the address of a Prometheus?"
        case _:
            return str(error)


if __name__ == "__main__":
    main()
