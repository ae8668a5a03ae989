"""An interface that states whether a sandbox has its own loopback interface or shares that of its host.

A runtime whose sandboxes always have their own network does not need it: check `isinstance(runtime, LoopbackOwner)`.
"""

from typing import Protocol, runtime_checkable


@runtime_checkable
class LoopbackOwner(Protocol):
    """Additional interface of a runtime, and of a provider of boxes, whose sandboxes may share their host's network."""

    def port_refusal(self, unit: str, port: int) -> str:
        """Why a connection from a sandbox to this port of its loopback leaves the sandbox; empty if it does not.

        Raises `RuntimeFailedError`.
        """
