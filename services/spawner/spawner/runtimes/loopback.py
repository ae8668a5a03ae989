"""Whether the loopback of a sandbox is its own.

Runtimes whose sandboxes always have a network of their own need not have this: `isinstance(runtime, LoopbackOwner)`.
"""

from typing import Protocol, runtime_checkable


@runtime_checkable
class LoopbackOwner(Protocol):
    """Additional interface of a runtime, and of a provider of boxes, whose sandboxes may share their host's network."""

    def port_refusal(self, unit: str, port: int) -> str:
        """Why a connection from within a sandbox to this port of its loopback leaves it; empty if it does not.

        Raises `RuntimeFailedError`.
        """
