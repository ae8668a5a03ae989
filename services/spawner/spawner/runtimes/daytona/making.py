"""Making a sandbox: of a snapshot where there is one of that name, of an image otherwise."""

from typing import Final

from daytona import AsyncDaytona, AsyncSandbox, DaytonaNotFoundError

from spawner.runtimes.boxes.provider import BoxSpec, ProviderError, ProviderFault
from spawner.runtimes.daytona import sandboxes
from spawner.runtimes.daytona.faults import Telling
from spawner.runtimes.daytona.patience import within
from spawner.runtimes.daytona.sandboxes import Kind, State, state_of

_ACTIVE: Final = "active"


async def make(daytona: AsyncDaytona, spec: BoxSpec, kind: Kind, telling: Telling) -> AsyncSandbox:
    """A new sandbox, as soon as it is started. Raises `ProviderError`; it may have been made none the less."""
    named = spec.image or kind.snapshot
    snapshot = named if named and await has_snapshot(daytona, named, telling) else None
    image = spec.image or kind.image
    with telling.faults(f"making {spec.name} of {snapshot or image}"):
        if snapshot:
            return await within(kind.patience, daytona.create(sandboxes.from_snapshot(spec, kind, snapshot), timeout=0))
        if (named and named == kind.snapshot) or image is None:
            raise ProviderError(ProviderFault.REFUSED, f"daytona: there is no snapshot {named}")
        return await within(kind.patience, daytona.create(sandboxes.from_image(spec, kind, image), timeout=0))


async def has_snapshot(daytona: AsyncDaytona, name: str, telling: Telling) -> bool:
    """Whether there is a snapshot of this name. Raises `ProviderError` for one that nothing can be made of."""
    with telling.faults(f"looking for the snapshot {name}"):
        try:
            found = await daytona.snapshot.get(name)
        except DaytonaNotFoundError:
            return False
    if found.state.value == _ACTIVE:
        return True
    why = telling.clean(f": {found.error_reason}" if found.error_reason else "")
    told = f"daytona: the snapshot {name} is {found.state.value}{why}; activate it, or name another"
    raise ProviderError(ProviderFault.REFUSED, told)


def failed(sandbox: AsyncSandbox, spec: BoxSpec, kind: Kind, telling: Telling) -> ProviderError:
    """What is said of a sandbox that failed while it was made. What can't be built will not be, another time."""
    built = state_of(sandbox) is State.BUILD_FAILED
    source = spec.image or kind.snapshot or kind.image
    why = telling.clean(sandbox.error_reason or "no reason is given")
    told = f"daytona: {spec.name} could not be made of {source}: {state_of(sandbox)}: {why}"
    return ProviderError(ProviderFault.REFUSED if built else ProviderFault.TRANSIENT, told)
