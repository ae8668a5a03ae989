"""The file system of a sandbox with default settings."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.settings import Settings
from spawner.runtimes import disk_sizes
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.factory import ProcessRuntimeOptions
from spawner.runtimes.process import ProcessRuntime

MEASURE = """
import os, pathlib
found = os.statvfs('.')
pathlib.Path('size.new').write_text(str(found.f_blocks * found.f_frsize))
os.rename('size.new', 'size')
"""


async def test_disk_is_limited_without_a_setting(
    open_process: Callable[..., Awaitable[ProcessRuntime]],
    plan_for: Callable[..., SandboxPlan],
    eventually: Callable[..., Awaitable[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By default a sandbox has a quarter of the host's file system, and at most 16 GiB."""
    monkeypatch.setattr(disk_sizes, "_IN_MEMORY", frozenset())  # the tests may run in memory
    unset = ProcessRuntimeOptions.of(Settings(home=tmp_path)).disk_megabytes
    runtime = await open_process(MEASURE, disk_megabytes=unset)
    assert runtime.capabilities.disk == "file system"
    await runtime.create(plan_for("sbx-one"))
    measured = runtime.layout.directory("sbx-one").work / "size"
    await eventually(measured.exists)
    host = os.statvfs(tmp_path)
    assert 0 < int(measured.read_text()) <= min(host.f_blocks * host.f_frsize // 4, 16 << 30)
