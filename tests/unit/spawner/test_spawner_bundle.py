"""Failures of the process that builds the worker's archive, and their faults."""

import sys

import pytest

from spawner.runtimes.boxes import worker_bundle
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault


@pytest.mark.parametrize(
    ("program", "fault", "expected_text"),
    [
        ("import os; os.kill(os.getpid(), 9)", ProviderFault.TRANSIENT, "signal 9"),
        (
            "import sys; sys.exit('sandherd-worker is not installed here')",
            ProviderFault.REFUSED,
            "sandherd image build",
        ),
    ],
)
async def test_failed_worker_archive_is_a_provider_fault(
    monkeypatch: pytest.MonkeyPatch, program: str, fault: ProviderFault, expected_text: str
) -> None:
    """Killed for lack of memory it is retried; not installed it is refused. Neither is cached as the archive."""
    monkeypatch.setattr(worker_bundle, "_MAKING", (sys.executable, "-c", program))
    monkeypatch.setattr(worker_bundle, "_archives", {})
    for make in (worker_bundle.packed, worker_bundle.cached_archive, worker_bundle.digest):
        with pytest.raises(ProviderError, match=expected_text) as failed:
            await make()
        assert failed.value.fault is fault
    assert worker_bundle._archives == {}
