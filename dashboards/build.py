"""Writes the dashboards anew: `uv run python -m dashboards.build` → grafana/*.json, for Grafana 10 and newer."""

from collections.abc import Iterator
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import fleet, health, reclaim, workload

FOLDER = Path(__file__).parent / "grafana"
_MADE = {"fleet": fleet.build, "workload": workload.build, "reclaim": reclaim.build, "health": health.build}


def contents() -> Iterator[tuple[Path, str]]:
    """Every file and what belongs into it."""
    for name, build in _MADE.items():
        yield FOLDER / f"{name}.json", JSONEncoder(sort_keys=True, indent=2).encode(build().build()) + "\n"


if __name__ == "__main__":
    for path, content in contents():
        path.write_text(content, encoding="utf-8")
