"""Sandboxes: what they are, what becomes of them, and how each is brought to its end."""
