"""Sandboxes: their records, state changes and lifecycle."""
