"""Values of named secrets, read once for a sandbox and stored encrypted with its record until it has ended."""

from spawner.records.store import Held
from spawner.resolving import Refusal
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.sandboxes.leading import Leading
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks.record import TaskRecord


async def with_pinned_secrets(
    leading: Leading, held: Held[SandboxRecord], task: TaskRecord | None
) -> Held[SandboxRecord]:
    """The sandbox with the values that its spec references, as they are now, or as they were at the first call.

    They stay the same for a sandbox: a recovery has to redact the values that its agent had. Raises
    `RuntimeFailedError` for a name that is not there, and `StoreUnavailableError`.
    """
    spec = held.record.spec or (task.spec if task else None)
    if spec is None or not spec.secrets or held.record.values:
        return held
    values = await leading.live.secrets.values(held.record.project, spec.secrets)
    if isinstance(values, Refusal):
        raise RuntimeFailedError(RuntimeFault.REFUSED, values.reason)
    pinned = await leading.note(
        held.record.key, lambda record: record.model_copy(update={"values": values}), publish=False
    )
    return pinned or held
