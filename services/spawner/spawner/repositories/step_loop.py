"""Runs the due steps of one branch, until there are none or one has to be retried."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from sandherd.bus.lease import LeaseLostError
from spawner.sandboxes.reconciler import FOR_NOW

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


async def run_steps(
    key: str,
    step: Callable[[str], Awaitable[bool]],
    branch_log: "FilteringBoundLogger",
    extra_transient: tuple[type[Exception], ...],
    on_delay: "Callable[[str, Exception], Awaitable[None]] | None" = None,
) -> bool:
    """Run all due steps of this branch; return whether to retry later.

    `step` runs the next step, and returns whether there was one. `extra_transient`: transient errors of steps, besides
    `FOR_NOW`. `on_delay` is called after a transient error.
    """
    transient: tuple[type[Exception], ...] = (*extra_transient, *FOR_NOW)
    try:
        while await step(key):
            pass
    except LeaseLostError as error:
        branch_log.info("lease lost to another replica", lease=str(error))
    except transient as error:
        branch_log.warning("branch not handled, retrying", branch=key, error=str(error))
        if on_delay is not None:
            with suppress(LeaseLostError, *FOR_NOW):
                await on_delay(key, error)
        return True
    except Exception as error:  # noqa: BLE001  # one branch must not block all others; it is retried
        branch_log.error("branch step failed, retrying", branch=key, exc_info=error)
        return True
    return False
