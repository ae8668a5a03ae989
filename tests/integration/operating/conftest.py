"""Fixtures of these tests."""

from pathlib import Path

import pytest

from sandherd.telemetry import logs


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logs.configure("test", "warning")


@pytest.fixture(scope="session", autouse=True)
def _forked_services(sandherd_program: Path) -> None:
    """Make supervisors and services of these tests' stacks forks (`tests/preloaded_cli`)."""
