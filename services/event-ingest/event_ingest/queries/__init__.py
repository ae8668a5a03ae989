"""Answers requests about the history: one module for each kind of request."""
