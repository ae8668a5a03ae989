"""What these tests share."""

from pathlib import Path

import pytest

from sandherd.telemetry import logs


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logs.configure("test", "warning")


@pytest.fixture(scope="session", autouse=True)
def _forked_services(sandherd_program: Path) -> None:
    """Supervisors and services of the stacks that these tests start are forks (`tests/preloaded_cli`)."""
