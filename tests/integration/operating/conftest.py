"""What these tests share."""

import pytest

from sandherd.telemetry import logs


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logs.configure("test", "warning")
