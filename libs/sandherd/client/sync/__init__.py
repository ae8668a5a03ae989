"""`SyncHerd`, the client for programs without asyncio.

`make docs` generates most of its modules from `Herd`, and from the classes of the objects that its methods return.
"""
