"""Structured logs on standard error: JSON for machines, text for a terminal.

No secret can be in them: settings name files, never values, and errors carry no request bodies or headers.
"""

import logging
import sys
from typing import Any, Literal

import structlog


def configure(*, level: str, style: Literal["json", "text"]) -> None:
    """Set up logging for the process; libraries that use the standard library's logging are shown from warnings up."""
    renderer: Any = structlog.processors.JSONRenderer() if style == "json" else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, force=True)
