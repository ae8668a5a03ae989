"""Runtimes that create sandboxes: one interface, and one module or subpackage per runtime."""
