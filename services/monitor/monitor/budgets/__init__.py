"""Budgets: the usage of tasks, projects and the herd, by summaries of sandboxes, and the actions at their limits."""
