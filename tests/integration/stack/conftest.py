"""Fixtures of the stack's tests."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    found = Path(mkdtemp(prefix="small-"))
    yield found
    shutil.rmtree(found, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _forked_services(sandherd_program: Path) -> None:
    """Make supervisors and services of these tests' stacks forks (`tests/preloaded_cli`)."""
