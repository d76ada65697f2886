"""Structured logs on standard error: JSON for machines, text for a terminal. One line of JSON per event.

No secret can be in them: settings name files, never values, errors carry no request bodies or headers, and tracebacks
no values of variables.
"""

import logging
import os
import sys
from typing import Any, Literal

import structlog

_SHARED: tuple[structlog.typing.Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
)


def configure(*, level: str, style: Literal["json", "text"]) -> None:
    """Set up logging for the process; libraries that use the standard library's logging are shown from warnings up."""
    has_colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    # The other formatters of a console show the values of local variables.
    renderers: list[Any] = [
        structlog.dev.ConsoleRenderer(colors=has_colours, exception_formatter=structlog.dev.plain_traceback)
    ]
    if style == "json":
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*_SHARED, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    theirs = logging.StreamHandler(sys.stderr)
    theirs.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[theirs], force=True)
