"""What Sandherd says of itself: logs, metrics and traces, each name in one place."""

from sandherd.lean import load_structlog

load_structlog()
