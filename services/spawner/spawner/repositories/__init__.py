"""Repositories of tasks: their mirrors, branches and pull requests."""
