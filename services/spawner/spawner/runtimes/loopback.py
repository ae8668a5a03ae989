"""The interface of a runtime that states whether a port of a sandbox's loopback interface is a port of its host.

A runtime whose sandboxes always have their own network does not implement it (`isinstance(runtime, LoopbackOwner)`).
"""

from typing import Protocol, runtime_checkable


@runtime_checkable
class LoopbackOwner(Protocol):
    """Additional interface of a runtime, and of a provider of boxes, whose sandboxes may share their host's network."""

    def port_refusal(self, unit: str, port: int) -> str:
        """Why connections of a sandbox to this port of its loopback leave the sandbox; empty if they stay in it.

        Raises `RuntimeFailedError`.
        """
