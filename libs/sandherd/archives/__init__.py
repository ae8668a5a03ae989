"""Writes tar archives, extracts untrusted ones, checks paths, and merges folders.

It needs only the standard library, because the client, the worker and the spawner use it.
"""
