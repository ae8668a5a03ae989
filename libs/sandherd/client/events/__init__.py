"""Follows events live and from the history, without gaps and in order."""
