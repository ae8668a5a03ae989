"""The driver with the real SDK and its real program, against a scripted model."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from tests.drivers.conftest import TOOLCHAINS, StartDriver
from tests.drivers.driver_process import DriverProcess
from tests.models.anthropic import AnthropicModel, anthropic_model

StartClaude = Callable[..., Awaitable[DriverProcess]]


@pytest.fixture
async def model() -> AsyncIterator[AnthropicModel]:
    """A model that answers by a script."""
    async with anthropic_model() as model:
        yield model


@pytest.fixture
def claude(start_driver: StartDriver, model: AnthropicModel) -> StartClaude:
    """Starts the driver and gives it a task: `await claude("do it", max_turns=2)`."""

    async def start(
        task: str,
        *,
        env: Mapping[str, str] | None = None,
        resume: Mapping[str, Any] | None = None,
        prepare: Callable[[DriverProcess], None] = lambda _driver: None,
        **harness: Any,
    ) -> DriverProcess:
        python = TOOLCHAINS / "claude" / "bin" / "python"
        if not python.exists():
            pytest.fail(f"{python} is missing: these tests need the real SDK")
        variables = {
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "sk-ant-scripted",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            **(env or {}),
        }
        driver = await start_driver("claude", python=python, env=variables)
        prepare(driver)
        driver.begin(task, {"kind": "claude", **harness}, resume)
        return driver

    return start
