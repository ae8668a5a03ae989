"""The Node.js example with what it needs."""

from tests.npm_packages import EXAMPLE, node_with

__all__ = ["EXAMPLE", "program"]


def program() -> list[str]:
    """The command that runs the example. Fails the test, in one line, where there is no Node.js."""
    node, folder = node_with(EXAMPLE)
    return [node, str(folder / "follow.mjs")]
