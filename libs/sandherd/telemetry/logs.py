"""Logs: one JSON object per line on standard error, with the trace and the names that the line is about."""

import logging
import sys
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TextIO, cast

from sandherd.hidden_modules import hidden

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

Event = MutableMapping[str, Any]
_COLOUR_MODULES: Final = ("rich", "better_exceptions")
SILENT: Final = "critical"
"""The level of a CLI command, which writes messages to its user itself, and loads no logging library."""


def configure(service: str, level: str = "info") -> None:
    """Send this process's logs, and those of its libraries, to standard error as JSON. `SILENT` discards them."""
    _Logger.silent = level == SILENT
    if level == SILENT:
        logging.basicConfig(handlers=[logging.NullHandler()], force=True)
        return
    load()
    import structlog

    def add_service(_logger: object, _method: str, event: Event) -> Event:
        # Not by a context variable, because a new thread does not inherit those of the thread that started it.
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
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _LossyStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_StructlogHandler()], level=logging.WARNING, force=True)


class _LossyStream:
    """A text stream that drops what can't be written, because a log on a full disk must not break a service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text; ignore `OSError`."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream; ignore `OSError`."""
        with suppress(OSError):
            self._stream.flush()


class _Logger:
    """A logger that loads structlog for its first line."""

    silent: ClassVar[bool] = True
    """True until a program configures its logs, because the client library raises errors, and writes no logs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._structlog_logger: FilteringBoundLogger | None = None

    def __getattr__(self, method: str) -> Any:
        if self.silent:
            return _log_nothing
        if self._structlog_logger is None:
            load()
            import structlog

            self._structlog_logger = structlog.get_logger(part=self._name)
        return getattr(self._structlog_logger, method)


def _log_nothing(*_arguments: object, **_fields: object) -> None:
    return


def get(name: str) -> "FilteringBoundLogger":
    """A logger; `name` is the part of the process that logs."""
    return cast("FilteringBoundLogger", _Logger(name))


def load() -> None:
    """Load structlog without the modules that colour its tracebacks, which logs in JSON don't have."""
    with hidden(_COLOUR_MODULES):
        import_module("structlog")


def error_fields(error: BaseException) -> dict[str, Any]:
    """The class of an error and the places where it was raised, as log fields.

    The text of the error is left out, because it may contain the values that caused it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    cause = error.__cause__ or error.__context__
    return {
        "error": type(error).__name__,
        "places": [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames],
        **({"cause": type(cause).__name__} if cause is not None else {}),
    }


def _add_trace(_logger: object, _method: str, event: Event) -> Event:
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:  # so there is no span
        return event
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event


class _StructlogHandler(logging.Handler):
    """Passes the standard library's records to structlog, so that a process has one log."""

    def emit(self, record: logging.LogRecord) -> None:
        get(record.name).log(record.levelno, record.getMessage(), exc_info=record.exc_info)
