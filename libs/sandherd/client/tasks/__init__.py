"""Preparation of tasks before they are submitted: checks, batches and resumption."""
