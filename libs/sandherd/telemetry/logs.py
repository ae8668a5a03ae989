"""Logs: one JSON object per line on standard error, with the trace and the sandbox it is about."""

import logging
import sys
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast

import structlog
from opentelemetry import trace
from structlog.typing import FilteringBoundLogger

Event = MutableMapping[str, Any]


def configure(service: str, level: str = "info") -> None:
    """Send this process's logs, and those of its libraries, to standard error as JSON."""

    def add_service(_logger: object, _method: str, event: Event) -> Event:
        # Not a context variable: a thread begins without those of who has started it.
        event.setdefault("service", service)
        return event

    structlog.configure(
        processors=[
            add_service,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _add_trace,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Lossy(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Forward()], level=logging.WARNING, force=True)


class _Lossy:
    """A text stream that loses what can't be written: a log on a full disk must break no service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with suppress(OSError):
            self._stream.flush()


def get(name: str) -> FilteringBoundLogger:
    """A logger; `name` says which part speaks."""
    return cast("FilteringBoundLogger", structlog.get_logger(part=name))


def place(error: BaseException) -> dict[str, Any]:
    """What broke and where, for a log that is not to hold the values that it broke over: no error's text does."""
    frames = traceback.extract_tb(error.__traceback__)
    cause = error.__cause__ or error.__context__
    return {
        "error": type(error).__name__,
        "places": [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames],
        **({"cause": type(cause).__name__} if cause is not None else {}),
    }


def _add_trace(_logger: object, _method: str, event: Event) -> Event:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event


class _Forward(logging.Handler):
    """Hands the standard library's records to structlog, so that a process has one log."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger(part=record.name).log(record.levelno, record.getMessage(), exc_info=record.exc_info)
