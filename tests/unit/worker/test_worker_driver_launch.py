"""A harness that is not installed in the sandbox: the attempt fails with what to install."""

import pytest

from sandherd.contracts.harness_kinds import CLAUDE
from sandherd.contracts.harnesses import ClaudeHarness, PluginHarness
from sandherd_worker.harnesses.driver_launch import _kind
from sandherd_worker.toolchains import NoToolchainError


def test_missing_plugin_in_the_sandbox_is_reported() -> None:
    """The error states where to install it."""
    with pytest.raises(NoToolchainError, match=r"wizard is not installed in this sandbox; install .* image"):
        _kind(PluginHarness(kind="wizard"))


def test_built_in_kinds_need_no_search() -> None:
    """The worker's start does not search the installed distributions."""
    harness = ClaudeHarness(kind="claude")
    assert _kind(harness) == (CLAUDE, harness)
