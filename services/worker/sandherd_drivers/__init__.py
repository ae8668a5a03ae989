"""Drivers: processes that run an agent's SDK under an interpreter of its own, on behalf of the worker.

They communicate with the worker by the protocol in `wire` only, and import neither its package nor its dependencies.
They run on Python 3.11 and newer, with the standard library and the SDK of their kind.
"""
