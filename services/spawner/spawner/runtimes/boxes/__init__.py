"""Sandboxes created by a provider: one runtime for all providers, and the small interface that each implements."""
