"""The rules as PrometheusRule objects, for clusters with the Prometheus operator.

uv run python -m dashboards.prometheus_rules    # writes rules/prometheusrule/*.yaml anew
"""

from collections.abc import Iterator
from pathlib import Path

RULES = Path(__file__).parent / "rules"


def contents() -> Iterator[tuple[Path, str]]:
    """Every file and what belongs into it."""
    for rules in sorted(RULES.glob("*.rules.yaml")):
        name = rules.name.removesuffix(".rules.yaml")
        yield RULES / "prometheusrule" / f"{name}.yaml", prometheus_rule(rules.read_text(encoding="utf-8"), name)


def prometheus_rule(rules: str, name: str) -> str:
    """The text of a file of rules as an object of that name, with its comments."""
    start = rules.index("groups:\n")
    comments, groups = rules[:start], rules[start:]
    head = f"""\
# Made of ../{name}.rules.yaml: uv run python -m dashboards.prometheus_rules
{comments}apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {name}
  labels: {{app.kubernetes.io/name: idle-gpu-scaler}}
spec:
"""
    return head + "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True))


if __name__ == "__main__":
    for path, content in contents():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
