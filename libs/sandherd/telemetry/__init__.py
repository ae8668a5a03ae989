"""What Sandherd says of itself: logs, metrics and traces, each name in one place."""
