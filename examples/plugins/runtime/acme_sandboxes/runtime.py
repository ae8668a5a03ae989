"""Opens the runtime `acme`: that of processes, with its sandboxes on another disk, as a fast one."""

from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from spawner.runtimes.contract import Runtime
from spawner.runtimes.factory import ProcessRuntimeOptions, open_runtime
from spawner.runtimes.plugin import RuntimeContext


class AcmeOptions(BaseModel):
    """Its settings: each is an environment variable of the spawner, SANDHERD_RUNTIME_ACME_ and the field's name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path
    """The folder of the sandboxes."""


async def open_acme(context: RuntimeContext) -> Runtime:
    """Open it. Raises `RuntimeFailedError` if SANDHERD_RUNTIME_ACME_FOLDER is not set."""
    options = context.options(AcmeOptions)
    process = ProcessRuntimeOptions.of(context.settings, context.worker, starts=context.starts)
    runtime = await open_runtime(
        replace(
            process,
            root=options.folder / "sandboxes",
            quarantine=options.folder / "kept",
            hidden=(*process.hidden, options.folder),
        )
    )
    runtime.name = context.name
    return runtime
