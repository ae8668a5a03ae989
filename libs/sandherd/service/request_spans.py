"""Spans of requests. Each is a separate trace, and few are of interest, so only a share of them is exported."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

from sandherd.contracts.errors import Code
from sandherd.telemetry import spans
from sandherd.telemetry.traces import error_type_of, is_exported, record, span

SLOW_SECONDS: Final = 1.0
"""A request that takes longer than this always has a span."""
_FAULTS_OF_REQUESTERS: Final = frozenset(Code) - {Code.UNAVAILABLE, Code.INTERNAL}
"""The codes of errors that the requester causes, and not the service."""


def is_notable(error_type: str | None, seconds: float) -> bool:
    """Whether a request always has a span: it was slow, or has failed because of the service."""
    return seconds > SLOW_SECONDS or (error_type is not None and error_type not in _FAULTS_OF_REQUESTERS)


class RequestSpans:
    """Exports the spans of notable requests, and of a share of the others."""

    def __init__(self, share: float, draw: Callable[[], float] = random.random) -> None:
        self._share = share
        self._draw = draw

    @contextmanager
    def span(self, request_type: str) -> Iterator[None]:
        """Handle a request in the block. Log lines and events have its trace only if it belongs to the share."""
        if not is_exported():
            yield
        elif self._draw() < self._share:
            with span(spans.ANSWER, values={spans.TYPE: request_type}):
                yield
        else:
            with _recorded_if_notable(request_type):
                yield


@contextmanager
def _recorded_if_notable(request_type: str) -> Iterator[None]:
    begun, error_type = time.monotonic(), None
    try:
        yield
    except Exception as error:  # raised again: only its type is needed
        error_type = error_type_of(error)
        raise
    finally:
        seconds = time.monotonic() - begun
        if is_notable(error_type, seconds):
            ended = datetime.now(UTC)
            values: spans.Values = {spans.TYPE: request_type, spans.ERROR_TYPE: error_type}
            record(spans.ANSWER, None, ended - timedelta(seconds=seconds), ended, values)
