"""Runs the rules over stored events: the decisions, their quality by labels, and the report."""
