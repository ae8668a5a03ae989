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
    """If the process is killed, the fault is transient; without a worker it is `refused`. No failure is cached."""
    monkeypatch.setattr(worker_bundle, "_PACKER", (sys.executable, "-c", program))
    monkeypatch.setattr(worker_bundle, "_archives", {})
    for make in (worker_bundle.pack, worker_bundle.cached_archive, worker_bundle.digest):
        with pytest.raises(ProviderError, match=expected_text) as failed:
            await make()
        assert failed.value.fault is fault
    assert worker_bundle._archives == {}
