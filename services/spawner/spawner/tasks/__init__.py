"""Tasks: what they are, what becomes of them, and which one is next."""
