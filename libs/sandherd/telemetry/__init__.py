"""Sandherd's telemetry: logs, metrics and traces, with each name in one place."""
