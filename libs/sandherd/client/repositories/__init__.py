"""Git repositories of this machine: uploads base branches for tasks, and fetches branches of tasks."""
