"""Pages of one file: what a verb writes for people to open, print, and send to others.

They look as the page does: the same style, light and dark by the system's setting, and printed as light. Nothing is
loaded from elsewhere and no script runs; their own header forbids both. `document/base.html` is what they extend.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from scaler import __version__
from scaler.reporting.page.rendering import environment

TEMPLATES = Path(__file__).parent / "templates"

_environment = cache(partial(environment, TEMPLATES))


def document(template: str, context: Mapping[str, Any], *, at: datetime) -> str:
    """The HTML. `at`: when it was made."""
    return _environment().get_template(template).render({"version": __version__, "made_at": at, **context})
