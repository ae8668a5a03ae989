"""`SyncHerd`: connects, and closes the connection."""

from collections.abc import Generator
from contextlib import contextmanager

from sandherd.client.context import Context
from sandherd.client.herd import Herd
from sandherd.client.sync.herd_methods import SyncHerdMethods
from sandherd.client.sync.loop_thread import LoopThread


class SyncHerd(SyncHerdMethods):
    """`Herd` for programs without asyncio: the same methods, which return when the work is done.

    Events and output are plain generators. The connection uses a separate thread, so several threads may use one
    `SyncHerd`, and the program may run an event loop itself. Ctrl-C cancels the method that waits. Callbacks such as
    `on_progress` are called in the connection's thread, and can't call methods of the `SyncHerd`.
    """

    def __init__(self, thread: LoopThread | None = None, herd: Herd | None = None) -> None:
        if thread is None or herd is None:
            raise TypeError("a SyncHerd has to be connected: `with SyncHerd.connect() as herd:`")
        super().__init__(thread, herd)

    @classmethod
    @contextmanager
    def connect(cls, context: Context | None = None, *, patience: float = 5.0) -> Generator["SyncHerd"]:
        """Connect within `patience` seconds. The default context is that of `Context.resolve`."""
        thread = LoopThread()
        try:
            with thread.entered(Herd.connect(context, patience=patience)) as herd:
                yield cls(thread, herd)
        finally:
            thread.close()
