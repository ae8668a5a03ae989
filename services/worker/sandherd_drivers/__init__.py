"""Drivers: processes that run an agent's SDK on behalf of the worker, each with a separate Python interpreter.

Drivers communicate with the worker by the protocol in `wire` only, and import neither the worker's package nor its
dependencies. They run on Python 3.11 and newer, with the standard library and the SDK of their kind.
"""
