"""A report as a message to one of the targets of the settings: a list, which any width and font can show."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from scaler.app.cli.layout import plain_text
from scaler.app.settings.notifications import NotificationSettings
from scaler.app.targets import configured_notifications
from scaler.decision.describe import timestamp
from scaler.errors import ConfigurationError
from scaler.notifications.senders import Content, Sender
from scaler_analysis.cli.report_text import render
from scaler_analysis.report.formats import as_json
from scaler_analysis.report.summary import UsageReport
from scaler_analysis.report.view import number

_WIDTH = 60
"""Characters; a table of so many columns becomes a list."""
_MOST_ROWS = 20


def sender_to(target: str, settings: NotificationSettings) -> Sender:
    """Raises: ConfigurationError where the settings have no such target."""
    senders = configured_notifications(settings).senders
    if target not in senders:
        known = f"they have {', '.join(senders)}" if senders else "they have none"
        raise ConfigurationError(f"--notify {target}: is none of notifications.targets of the settings; {known}")
    return senders[target]


def message_of(report: UsageReport, matchers: Mapping[str, str]) -> Content:
    begin, end = timestamp(report.whole.begin), timestamp(report.whole.end)
    first, left_out = replace(report, rows=report.rows[:_MOST_ROWS]), len(report.rows) - _MOST_ROWS
    more = [f"{left_out} more rows: idle-gpu-scaler report"] if left_out > 0 else []
    ident = hashlib.sha256(f"report\n{begin}\n{end}\n{report.by}".encode()).hexdigest()[:32]
    idle = f"{number(report.total.idle_hours)} GPU-hours held idle" if report.known else "nothing is known"
    return Content(
        id=ident,
        owner="",
        subject=f"[idle GPUs] {report.whole.begin:%Y-%m-%d} to {report.whole.end:%Y-%m-%d}: {idle}",
        text="\n".join([plain_text(render(first, matchers, _WIDTH), _WIDTH), *more, ""]),
        json={"id": ident, "report": as_json(report, matchers)},
    )
