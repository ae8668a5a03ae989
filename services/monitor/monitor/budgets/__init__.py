"""Budgets: what tasks, projects and the herd have used, by summaries of sandboxes, and what follows from that."""
