"""How the driver of a harness is started: its interpreter, its module, and the packages that it can import."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from sandherd.contracts.errors import ContractError
from sandherd.contracts.harness_kinds import OWN_KINDS, HarnessKind
from sandherd.contracts.harnesses import AnyHarness, PluginHarness
from sandherd_worker.assignment import Assignment
from sandherd_worker.toolchains import NoToolchainError, interpreter, link_drivers


@dataclass(frozen=True)
class DriverLaunch:
    """The start of one driver."""

    kind: HarnessKind
    options: BaseModel
    python: Path
    packages: Path
    """The directory with the packages of drivers."""

    @property
    def argv(self) -> list[str]:
        """The command line."""
        return [str(self.python), "-B", "-P", "-m", str(self.kind.driver)]

    @property
    def search_path(self) -> str:
        """The driver's PYTHONPATH. In the worker's interpreter it also has the worker's PYTHONPATH."""
        shared = "" if self.kind.toolchain else os.environ.get("PYTHONPATH", "")
        return os.pathsep.join(filter(None, (str(self.packages), shared)))


def driver_launch(harness: AnyHarness, assignment: Assignment) -> DriverLaunch:
    """The start of the driver of this harness. Raises `NoToolchainError`, and `OSError`."""
    kind, options = _kind(harness)
    others = () if kind.name in OWN_KINDS else (str(kind.driver).partition(".")[0],)
    packages = link_drivers(assignment.state_dir / "drivers", *others)
    python = interpreter(assignment, kind.name) if kind.toolchain else Path(sys.executable)
    return DriverLaunch(kind, options, python, packages)


def _kind(harness: AnyHarness) -> tuple[HarnessKind, BaseModel]:
    """The kind with the options in its own model. Raises `NoToolchainError` for a plugin that can't be used here."""
    if not isinstance(harness, PluginHarness):
        return OWN_KINDS[harness.kind], harness
    from sandherd.plugins import HARNESSES, PluginError, installed, load_harness  # only plugins need the search

    plugin = installed(HARNESSES).get(harness.kind)
    if plugin is None:
        problem = "install the same distribution in the sandbox's image, or beside the spawner for runtime process"
        raise NoToolchainError(f"the harness {harness.kind} is not installed in this sandbox; {problem}")
    try:
        kind = load_harness(plugin)
        return kind, kind.options.model_validate(harness.document())
    except PluginError as error:
        raise NoToolchainError(str(error)) from error
    except ValidationError as error:
        problem = ContractError.from_validation(error).problem.message
        raise NoToolchainError(f"{plugin.title}: it differs from the spawner's: {problem}") from None
