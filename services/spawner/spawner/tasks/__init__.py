"""Tasks: their records, state changes and scheduling."""
