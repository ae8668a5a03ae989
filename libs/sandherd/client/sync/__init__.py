"""`SyncHerd`, the client for programs without asyncio.

`make docs` generates most of its modules from the signatures of `Herd` and of what its methods return.
"""
