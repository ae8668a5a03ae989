"""Named contexts of a user: for each herd its address, the path of a credential, and a project. No secret is stored.

The file is `contexts.json` in the user's configuration folder. The name `local` stands for the stack of the home.
"""

import os
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandherd.client.errors import HerdError, checked_name, validated
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import SafeName
from sandherd.private_files import write_file
from sandherd.settings.fields import AnyBrokerAddress
from sandherd.settings.loader import SettingSource

CONTEXT_VARIABLE: Final = "SANDHERD_CONTEXT"
LOCAL: Final = "local"
"""The name that selects the stack of the home and no named context."""
_FILE: Final = "contexts.json"
_LIST_REMEDY: Final = "`sandherd context list` shows those that exist, and `sandherd context add` adds one"


class NamedContext(BaseModel):
    """The address of a herd, and the credential and project to connect with."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    nats_url: AnyBrokerAddress
    credentials: Path
    """The file with the credential; it is read at each connection."""
    project: SafeName | None = None
    ca: Path | None = None
    """A PEM file with the certificate authorities of the broker, in place of NATS_CA."""


class NamedContexts(BaseModel):
    """All contexts of a user, and the current one, which is used unless another is named."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    current: SafeName | None = None
    contexts: Annotated[dict[SafeName, NamedContext], Field(default_factory=dict)]

    def find(self, name: str) -> NamedContext:
        """The context of this name. Raises `HerdError`."""
        if (context := self.contexts.get(name)) is None:
            raise HerdError.of(Code.NOT_FOUND, f"there is no context {name}", field="context", remedy=_LIST_REMEDY)
        return context

    def use(self, name: str) -> "NamedContexts":
        """The contexts with `name` as the current one; without a current one for `local`. Raises `HerdError`."""
        if name != LOCAL:
            self.find(name)
        return self.model_copy(update={"current": None if name == LOCAL else name})

    def add(self, name: str, context: NamedContext, *, replace: bool) -> "NamedContexts":
        """The contexts with a new one. Raises `HerdError` (`conflict`) for a name in use, unless `replace` is set."""
        if name == LOCAL:
            raise HerdError.of(
                Code.INVALID_FIELD, f"{LOCAL} is the stack of this home", field="context", remedy="use another name"
            )
        if name in self.contexts and not replace:
            raise HerdError.of(
                Code.CONFLICT, f"there is a context {name}", field="context", remedy="change it with --replace"
            )
        return self.model_copy(update={"contexts": {**self.contexts, name: context}})

    def remove(self, name: str) -> "NamedContexts":
        """The contexts without `name`, which may have been the current one. Raises `HerdError` if it is unknown."""
        self.find(name)
        remaining = {each: context for each, context in self.contexts.items() if each != name}
        return NamedContexts(current=None if self.current == name else self.current, contexts=remaining)


def new_context(nats_url: str, credentials: Path, project: str | None, ca: Path | None) -> NamedContext:
    """A context with absolute paths. Raises `HerdError` for an invalid value, and for a password in the address."""
    if "@" in nats_url:
        raise HerdError.of(
            Code.INVALID_FIELD,
            "nats_url: it must not contain a user or a password",
            field="nats_url",
            remedy="put the credential into a .creds file, and name it with --credentials",
        )
    return validated(
        NamedContext,
        nats_url=nats_url,
        credentials=credentials.expanduser().absolute(),
        project=project,
        ca=None if ca is None else ca.expanduser().absolute(),
    )


def contexts_file(environ: Mapping[str, str] | None = None) -> Path:
    """The path of the user's file of contexts, by the XDG base directory specification."""
    environ = os.environ if environ is None else environ
    folder = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home()) / ".config"
    return Path(folder) / "sandherd" / _FILE


def read_contexts(file: Path) -> NamedContexts:
    """The contexts of a user; empty if the file does not exist. Raises `HerdError` if it can't be read."""
    try:
        return NamedContexts.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return NamedContexts(contexts={})
    except ValidationError as error:
        reason, code = ContractError.from_validation(error).problem.message, Code.INVALID_JSON
    except OSError as error:
        reason, code = str(error.strerror), Code.REFUSED
    raise HerdError.of(
        code,
        f"{file} can't be read: {reason}",
        field="context",
        remedy="repair it, or delete it and add contexts again",
    )


def write_contexts(file: Path, contexts: NamedContexts) -> None:
    """Write the contexts to a file that only the user can read. Raises `OSError`."""
    write_file(file, contexts.model_dump_json(indent=2, exclude_none=True) + "\n")


@dataclass(frozen=True)
class SelectedContext:
    """The context that applies, and the sources whose values it overrides."""

    name: str
    context: NamedContext
    overridden_sources: Container[SettingSource]

    @property
    def settings(self) -> dict[str, Any]:
        """The values of the context, by the names of the settings."""
        return self.context.model_dump(include={"nats_url", "credentials", "project"})


def select(
    option: str | None, environ: Mapping[str, str], home: SettingSource, overridden_by_current: Container[SettingSource]
) -> SelectedContext | None:
    """The context that applies: that of `option`, else of SANDHERD_CONTEXT, else the current one; None without one.

    The current context overrides only values from the sources in `overridden_by_current`. It is not used if a home is
    named, because that home is another herd. Raises `HerdError`.
    """
    variable = environ.get(CONTEXT_VARIABLE)
    named_home = home in {SettingSource.PARAMETER, SettingSource.ENVIRONMENT}
    if LOCAL in {option, None if option else variable} or (named_home and not (option or variable)):
        return None
    contexts = read_contexts(contexts_file(environ))
    name = option or variable or contexts.current
    if name is None:
        return None
    context = contexts.find(checked_name(name, "context"))
    not_overridden = {SettingSource.PARAMETER} if option else {SettingSource.PARAMETER, SettingSource.ENVIRONMENT}
    return SelectedContext(
        name, context, frozenset(SettingSource) - not_overridden if option or variable else overridden_by_current
    )
