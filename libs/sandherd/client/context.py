"""Where to connect, from parameters, environment, settings file, a named context, the stack and defaults.

The settings file is the one that is named, or else the one with which the stack of this home was started.
"""

import json
import os
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from sandherd.bus.identity.credentials import Bearer, bearer
from sandherd.client.credential_errors import credential_error
from sandherd.client.errors import HerdError, from_contract_error
from sandherd.client.named_contexts import SelectedContext, select
from sandherd.contracts.errors import Code, ContractError
from sandherd.settings.client import ClientSettings
from sandherd.settings.loader import LoadedSettings, SettingSource, load, load_client
from sandherd.settings.text_values import CONFIG_VARIABLE

Role = Literal["client", "operator"]
CONTEXT_FILE: Final = "context.json"
FROM_CONTEXT: Final = "context"

_VARIABLES: Final = (
    "NATS_URL", "SANDHERD_CREDENTIALS", "SANDHERD_PROJECT", "SANDHERD_HOME", "SANDHERD_TOOLCHAINS", CONFIG_VARIABLE,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where to connect, with which credential, and to which project."""

    nats_url: str
    credentials: Path | None
    project: str
    home: Path
    name: str | None = None
    """The name of a context that the user has added (`client.named_contexts`); None if none is used."""
    ca: Path | None = None
    """A file with the certificate authorities of the broker, in place of NATS_CA."""
    toolchains: Path | None = None
    """The directory of the agent SDKs, on a machine with a spawner."""
    services: Mapping[str, str] = field(default_factory=dict)
    """The known HTTP addresses of services, by service."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The source of each value, by name."""

    @classmethod
    def resolve(
        cls,
        *,
        nats_url: str | None = None,
        credentials: Path | None = None,
        project: str | None = None,
        home: Path | None = None,
        role: Role = "client",
        environ: Mapping[str, str] | None = None,
        config: Path | None = None,
        context: str | None = None,
    ) -> Self:
        """Resolve every value. `context` names a context that the user has added; `local` is the stack of the home.

        Raises `HerdError` for an invalid value, a broken file, or an unknown `context`.
        """
        arguments = {"nats_url": nats_url, "credentials": credentials, "project": project, "home": home}
        environ = os.environ if environ is None else environ
        variables = {name: environ[name] for name in _VARIABLES if name in environ}
        setting_sources = find_settings(arguments, variables, config, client=True)
        if named_context := select(
            context, environ, setting_sources.loaded.sources["home"], setting_sources.overridden_sources
        ):
            return cls._from_named_context(named_context, setting_sources.loaded)
        loaded, stack_facts = setting_sources.loaded, setting_sources.stack
        stack = {
            "nats_url": stack_facts.get("nats_url"),
            "credentials": _stack_credentials(stack_facts, role, loaded.settings.project),
        }
        values, sources = _replace_overridden(loaded, stack, setting_sources.overridden_sources)
        return cls(
            nats_url=values["nats_url"],
            credentials=Path(values["credentials"]) if values["credentials"] else None,
            project=loaded.settings.project,
            home=loaded.settings.home,
            toolchains=loaded.settings.toolchain_dir,
            services=_service_addresses(stack_facts),
            sources=sources,
        )

    @classmethod
    def _from_named_context(cls, named_context: SelectedContext, loaded: LoadedSettings[ClientSettings]) -> Self:
        """The context for a named context of the user. Nothing of the local stack is used."""
        values, sources = _replace_overridden(
            loaded, named_context.settings, named_context.overridden_sources, f"{FROM_CONTEXT} {named_context.name}"
        )
        return cls(
            nats_url=values["nats_url"],
            credentials=values["credentials"],
            project=values["project"],
            home=loaded.settings.home,
            name=named_context.name,
            ca=named_context.context.ca,
            toolchains=loaded.settings.toolchain_dir,
            sources=sources,
        )


def _replace_overridden(
    loaded: LoadedSettings[ClientSettings],
    replacements: Mapping[str, Any],
    overridden_sources: Container[SettingSource],
    source: str = FROM_CONTEXT,
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of the settings, and their sources. `replacements` replace values from `overridden_sources`."""
    names = ("nats_url", "credentials", "project", "home")
    values = {name: getattr(loaded.settings, name) for name in names}
    sources = {name: str(loaded.sources[name]) for name in names}
    for name, value in replacements.items():
        if value and loaded.sources[name] in overridden_sources:
            values[name], sources[name] = value, source
    return values, sources


def _stack_credentials(stack_facts: Mapping[str, Any], role: Role, project: str) -> str | None:
    """A credential of the stack: for the role `client` that of the project's client, if any; else the operator's."""
    creds = stack_facts.get("creds") or {}
    project_credential = None if role == "operator" else creds.get(f"client-{project}")
    return project_credential or creds.get("operator")


def _service_addresses(stack_facts: Mapping[str, Any]) -> dict[str, str]:
    services = stack_facts.get("services") or {}
    return {name: facts["http"] for name, facts in services.items() if isinstance(facts, dict) and facts.get("http")}


def holder(credentials: Path) -> Bearer:
    """The holder of a credentials file, from its token. Raises `HerdError` if it is not a herd's credential."""
    try:
        return bearer(credentials.read_text())
    except (OSError, ValueError) as error:
        raise credential_error(credentials, error) from None


@dataclass(frozen=True)
class SettingSources:
    """The loaded settings and their sources."""

    loaded: LoadedSettings[ClientSettings]
    stack: Mapping[str, Any]
    """The context file of this home's stack; empty if there is none."""
    config: Path | None = None
    """The settings file that was read."""
    config_source: str = str(SettingSource.DEFAULT)

    @property
    def overridden_sources(self) -> frozenset[SettingSource]:
        """The sources whose values the stack's context file overrides: defaults, and a settings file that it names."""
        return frozenset(
            {SettingSource.DEFAULT} | ({SettingSource.YAML} if self.config_source == FROM_CONTEXT else set())
        )


def find_settings(
    arguments: Mapping[str, Any], environ: Mapping[str, str], config: Path | None, *, client: bool = False
) -> SettingSources:
    """Find and load the settings. Raises `HerdError` for an invalid value or an unreadable file.

    For a `client`, only the settings of clients are loaded, and errors in the settings file that the stack was started
    with are ignored.
    """
    read = load_client if client else load
    loaded = _load(read, arguments, environ, config)
    _check_encoding(loaded.settings.home)
    stack = _read_context(loaded.settings.home / CONTEXT_FILE)
    named_context, recorded_config = config or environ.get(CONFIG_VARIABLE), stack.get("config")
    if named_context:
        source = SettingSource.PARAMETER if config else SettingSource.ENVIRONMENT
        return SettingSources(loaded, stack, Path(named_context), str(source))
    if not isinstance(recorded_config, str) or not recorded_config:
        return SettingSources(loaded, stack)
    try:
        settings_with_file = _load(read, arguments, environ, Path(recorded_config))
    except HerdError as error:
        if client:
            return SettingSources(loaded, stack)
        remedy = "fix the file that the stack was started with, or name another one with --config"
        raise HerdError(error.problem.model_copy(update={"remedy": remedy})) from None
    return SettingSources(_with_home_of(loaded, settings_with_file), stack, Path(recorded_config), FROM_CONTEXT)


def _with_home_of(
    first: LoadedSettings[ClientSettings], settings_with_file: LoadedSettings[ClientSettings]
) -> LoadedSettings[ClientSettings]:
    """The settings `settings_with_file`, with the home of `first`, where that file was found."""
    settings = settings_with_file.settings.model_copy(update={"home": first.settings.home})
    sources = {**settings_with_file.sources, "home": first.sources["home"]}
    return LoadedSettings(settings, sources, {**settings_with_file.variables, **first.variables})


_Load = Callable[[Mapping[str, Any], Mapping[str, str], Path | None], LoadedSettings[ClientSettings]]


def _load(
    read: _Load, arguments: Mapping[str, Any], environ: Mapping[str, str], config: Path | None
) -> LoadedSettings[ClientSettings]:
    try:
        return read(arguments, environ, config)
    except ContractError as error:
        raise from_contract_error(error) from None


def home_of(home: Path | None, config: Path | None) -> Path:
    """The home of the local stack. Its context file is not read. Raises `HerdError` for an invalid setting."""
    environ = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    resolved_home = _load(load_client, {"home": home}, environ, config).settings.home
    _check_encoding(resolved_home)
    return resolved_home


def _check_encoding(home: Path) -> None:
    """Raise `HerdError` for a home whose path is not UTF-8, because records and configurations could not contain it."""
    try:
        str(home).encode()
    except UnicodeEncodeError:
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"home: {os.fsencode(home)!r} is not valid UTF-8",
            field="home",
            remedy="use a path in UTF-8, and a UTF-8 locale (LC_ALL=C.UTF-8)",
        ) from None


def _read_context(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise HerdError.of(
            Code.REFUSED,
            f"{path} can't be read: {error.strerror}",
            field="home",
            remedy="name the directory of a stack that this user may read, with `sandherd --home DIR` or SANDHERD_HOME",
        ) from None
    except ValueError as error:
        raise HerdError.of(
            Code.INVALID_JSON, f"{path} can't be read: {error}", remedy="write it again with `sandherd up`"
        ) from None
    return document if isinstance(document, dict) else {}
