"""Tar archives: writing them, extracting untrusted ones, safe paths, and merging folders.

Needs the standard library only: the client, the worker and the spawner use it.
"""
