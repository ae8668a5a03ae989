"""Answers about the past: one module for each kind of question."""
