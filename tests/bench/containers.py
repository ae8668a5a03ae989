"""Figures with a real Docker Engine: the docker runtime, and an idle spawner that has used it before."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.bench.idle_stack import measure_spawner
from tests.bench.recorder import Recorder
from tests.bench.runtimes import measure_docker
from tests.bench.stacks import stack
from tests.engines.docker import IMAGE, Engine


async def measure(recorder: Recorder) -> None:
    """Measure the runtime, then the idle spawner."""
    async with _engine() as engine:
        await measure_docker(recorder, engine.host)
        async with stack(_settings(engine)) as (herd, home):
            await measure_spawner(recorder, "idle.spawner_docker", herd, home)


@asynccontextmanager
async def _engine() -> AsyncIterator[Engine]:
    """Start an engine for this measurement. Starting it runs an event loop for a moment, so it is done in a thread."""
    engine = await asyncio.to_thread(Engine().__enter__)
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.__exit__, None, None, None)


def _settings(engine: Engine) -> dict[str, str]:
    """The settings of a stack whose sandboxes are containers of this engine."""
    return {
        "SANDHERD_RUNTIME": "docker",
        "SANDBOX_IMAGE": IMAGE,
        "SANDHERD_DOCKER_NETWORK": "host",
        "DOCKER_HOST": engine.host,
    }
