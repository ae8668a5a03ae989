"""Creates a sandbox from a snapshot if one with that name exists, else from an image."""

from typing import Final

from daytona import AsyncDaytona, AsyncSandbox, DaytonaNotFoundError

from spawner.runtimes.boxes.provider import BoxSpec, ProviderError, ProviderFault
from spawner.runtimes.daytona import sandboxes
from spawner.runtimes.daytona.faults import DaytonaFaults, within
from spawner.runtimes.daytona.sandboxes import DaytonaOptions, DaytonaState, state_of

_ACTIVE: Final = "active"


async def make(daytona: AsyncDaytona, spec: BoxSpec, options: DaytonaOptions, errors: DaytonaFaults) -> AsyncSandbox:
    """Create a sandbox and wait until it is started. After a `ProviderError` the sandbox may exist nevertheless."""
    name = spec.image or options.snapshot
    snapshot = name if name and await has_snapshot(daytona, name, errors) else None
    image = spec.image or options.image
    with errors.faults(f"creating {spec.name} from {snapshot or image}"):
        if snapshot:
            parameters = sandboxes.from_snapshot(spec, options, snapshot)
            return await within(options.patience, daytona.create(parameters, timeout=0))
        if (name and name == options.snapshot) or image is None:
            raise ProviderError(ProviderFault.REFUSED, f"daytona: there is no snapshot {name}")
        return await within(options.patience, daytona.create(sandboxes.from_image(spec, options, image), timeout=0))


async def has_snapshot(daytona: AsyncDaytona, name: str, errors: DaytonaFaults) -> bool:
    """Whether a snapshot with this name exists. Raises `ProviderError` if it exists but is not active."""
    with errors.faults(f"reading the snapshot {name}"):
        try:
            snapshot = await daytona.snapshot.get(name)
        except DaytonaNotFoundError:
            return False
    if snapshot.state.value == _ACTIVE:
        return True
    reason = errors.clean(f": {snapshot.error_reason}" if snapshot.error_reason else "")
    message = f"daytona: the snapshot {name} is {snapshot.state.value}{reason}; activate it, or use another"
    raise ProviderError(ProviderFault.REFUSED, message)


def creation_error(
    sandbox: AsyncSandbox, spec: BoxSpec, options: DaytonaOptions, errors: DaytonaFaults
) -> ProviderError:
    """The error for a sandbox that failed during its creation. A failed build is permanent, other failures are not."""
    is_permanent = state_of(sandbox) is DaytonaState.BUILD_FAILED
    source = spec.image or options.snapshot or options.image
    reason = errors.clean(sandbox.error_reason or "no reason given")
    message = f"daytona: {spec.name} could not be created from {source}: {state_of(sandbox)}: {reason}"
    return ProviderError(ProviderFault.REFUSED if is_permanent else ProviderFault.TRANSIENT, message)
