"""The interface of a runtime's entry point, for our own runtimes and for those of other distributions.

An entry point of the group `sandherd.runtimes` names an `OpenRuntime`. docs/plugins.md describes it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from sandherd.contracts.errors import ContractError
from sandherd.settings import Settings
from spawner.runtimes.contract import Runtime, RuntimeFailedError, RuntimeFault

if TYPE_CHECKING:
    from spawner.runtimes.boxes.provider import Provider

OptionsT = TypeVar("OptionsT", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class RuntimeContext:
    """The argument with which a runtime is opened."""

    name: str
    """The name of the entry point, which must also be the name of the runtime."""
    settings: Settings
    """The settings of the herd, as in docs/configuration.md."""
    herd: str
    """The id with which this herd's objects are labelled at a provider, which may also have objects of other herds."""
    worker: tuple[str, ...]
    """The command line of a worker on this host."""
    environ: Mapping[str, str]
    """The spawner's environment."""
    starts: bool = True
    """Whether sandboxes will be started. `sandherd-spawner-end` starts none: it only finds and ends them."""

    def options(self, model: type[OptionsT]) -> OptionsT:
        """The runtime's own settings. The field `size` of runtime `moon` is the variable SANDHERD_RUNTIME_MOON_SIZE.

        Raises `RuntimeFailedError` for an invalid value. The message has the name of the variable, and never the value,
        which may be a secret.
        """
        prefix = f"SANDHERD_RUNTIME_{self.name.upper().replace('-', '_')}_"
        names = {field: f"{prefix}{field.upper()}" for field in model.model_fields}
        values = {field: self.environ[name] for field, name in names.items() if self.environ.get(name)}
        try:
            return model.model_validate(values)
        except ValidationError as error:
            problem = ContractError.from_validation(error).problem
            name = names.get((problem.field or "").partition(".")[0], prefix)
            message = f"runtime {self.name}: {name}: {problem.message}"
            raise RuntimeFailedError(RuntimeFault.REFUSED, message) from None

    def of_boxes(self, provider: "Provider") -> Runtime:
        """The runtime whose sandboxes are boxes of this provider."""
        from spawner.runtimes.boxes.runtime import BoxRuntime  # not needed on a host with runtime `process` alone

        return BoxRuntime(provider, self.herd, self.settings.sandbox_nats_url)


OpenRuntime = Callable[[RuntimeContext], Awaitable[Runtime]]
"""Opens a runtime. Raises `RuntimeFailedError` if a setting is missing or a service that it needs is unavailable."""
