"""Drivers: what runs an agent's SDK, in a process and under an interpreter of its own, on behalf of the worker.

They speak by `wire` with the worker, and know nothing else of it: neither its package nor what it depends on. They
run on Python 3.11 and newer, with the standard library and the SDK of their kind.
"""
