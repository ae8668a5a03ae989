"""The spawner: takes tasks, starts a sandbox for each, and ends what has ended."""
