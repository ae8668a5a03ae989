"""Runs the Node.js example."""

from tests.npm_packages import EXAMPLE, node_with

__all__ = ["EXAMPLE", "program"]


def program() -> list[str]:
    """The command that runs the example. Without Node.js the test fails with a message of one line."""
    node, folder = node_with(EXAMPLE)
    return [node, str(folder / "follow.mjs")]
