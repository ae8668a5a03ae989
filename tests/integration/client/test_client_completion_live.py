"""A shell completes names from a real herd."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sandherd.cli import completion
from sandherd.client import Context, Herd
from sandherd.client.herd import task_spec
from sandherd.contracts.labels import BATCH_LABEL
from tests.patience import PATIENCE


async def test_names_of_a_herd_are_completed(real: Herd, line: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of name is offered if it begins with what was typed."""
    monkeypatch.setattr(completion, "SECONDS", float(PATIENCE))
    monkeypatch.setattr("sandherd.telemetry.logs.configure", lambda *_: None)
    spec = task_spec("work", ["true"])
    await real.submit_batch({"task-one": spec.model_copy(update={"labels": {BATCH_LABEL: "batch-one"}})}, wait=True)
    await real.create_schedule("nightly", spec, cron="0 3 * * *")
    await real.set_secret("model-key", "x" * 16)
    params = {"nats_url": line.nats_url, "credentials": line.credentials, "home": line.home}
    ctx: Any = SimpleNamespace(params={"project": None}, find_root=lambda: SimpleNamespace(params=params))
    for complete, typed, offered in (
        (completion.task_names, "task-o", ["task-one"]),
        (completion.batch_names, "", ["batch-one"]),
        (completion.project_names, "def", ["default"]),
        (completion.schedule_names, "", ["nightly"]),
        (completion.secret_names, "mod", ["model-key"]),
        (completion.secret_variables, "KEY=mod", ["KEY=model-key"]),
        (completion.schedule_names, "x", []),
    ):
        assert await asyncio.to_thread(complete, ctx, typed) == offered, complete.__name__
