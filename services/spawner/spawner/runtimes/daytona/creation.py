"""Creates a sandbox from a snapshot if one with that name exists, else from an image."""

from typing import Final

from daytona import AsyncDaytona, AsyncSandbox, DaytonaNotFoundError

from spawner.runtimes.boxes.provider import BoxSpec, ProviderError, ProviderFault
from spawner.runtimes.daytona import sandboxes
from spawner.runtimes.daytona.faults import DaytonaFaults, within
from spawner.runtimes.daytona.sandboxes import DaytonaOptions, DaytonaState, state_of

_ACTIVE: Final = "active"


async def make(daytona: AsyncDaytona, spec: BoxSpec, kind: DaytonaOptions, errors: DaytonaFaults) -> AsyncSandbox:
    """Create a sandbox and wait until it is started. Raises `ProviderError`; it may have been created nevertheless."""
    named = spec.image or kind.snapshot
    snapshot = named if named and await has_snapshot(daytona, named, errors) else None
    image = spec.image or kind.image
    with errors.faults(f"creating {spec.name} from {snapshot or image}"):
        if snapshot:
            return await within(kind.patience, daytona.create(sandboxes.from_snapshot(spec, kind, snapshot), timeout=0))
        if (named and named == kind.snapshot) or image is None:
            raise ProviderError(ProviderFault.REFUSED, f"daytona: there is no snapshot {named}")
        return await within(kind.patience, daytona.create(sandboxes.from_image(spec, kind, image), timeout=0))


async def has_snapshot(daytona: AsyncDaytona, name: str, errors: DaytonaFaults) -> bool:
    """Whether a snapshot with this name exists. Raises `ProviderError` if it exists but is not active."""
    with errors.faults(f"reading the snapshot {name}"):
        try:
            found = await daytona.snapshot.get(name)
        except DaytonaNotFoundError:
            return False
    if found.state.value == _ACTIVE:
        return True
    why = errors.clean(f": {found.error_reason}" if found.error_reason else "")
    message = f"daytona: the snapshot {name} is {found.state.value}{why}; activate it, or use another"
    raise ProviderError(ProviderFault.REFUSED, message)


def failed(sandbox: AsyncSandbox, spec: BoxSpec, kind: DaytonaOptions, errors: DaytonaFaults) -> ProviderError:
    """The error for a sandbox that failed during its creation. A failed build is permanent, other failures are not."""
    built = state_of(sandbox) is DaytonaState.BUILD_FAILED
    source = spec.image or kind.snapshot or kind.image
    why = errors.clean(sandbox.error_reason or "no reason given")
    message = f"daytona: {spec.name} could not be created from {source}: {state_of(sandbox)}: {why}"
    return ProviderError(ProviderFault.REFUSED if built else ProviderFault.TRANSIENT, message)
