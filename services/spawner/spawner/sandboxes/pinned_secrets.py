"""Values of named secrets, read once for a sandbox and stored encrypted with its record until it has ended."""

from spawner.records.store import StoredRecord
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.sandboxes.fenced_writes import FencedWriter
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.spec_resolution import Refusal
from spawner.tasks.task_record import TaskRecord


async def with_pinned_secrets(
    writer: FencedWriter, held: StoredRecord[SandboxRecord], task: TaskRecord | None
) -> StoredRecord[SandboxRecord]:
    """The sandbox with the values that its spec references, as of the first call.

    They do not change for a sandbox: a recovery must redact the values that its agent had. Raises
    `RuntimeFailedError` for a missing name, and `StoreUnavailableError`.
    """
    spec = held.record.spec or (task.spec if task else None)
    if spec is None or not spec.secrets or held.record.values:
        return held
    values = await writer.live.secrets.values(held.record.project, spec.secrets)
    if isinstance(values, Refusal):
        raise RuntimeFailedError(RuntimeFault.REFUSED, values.reason)
    pinned = await writer.note(
        held.record.key, lambda record: record.model_copy(update={"values": values}), publish=False
    )
    return pinned or held
