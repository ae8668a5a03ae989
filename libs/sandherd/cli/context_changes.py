"""Changes the contexts of a user: their file is read, changed and written as a whole."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sandherd.cli.options import Format
from sandherd.cli.render.console import print_document
from sandherd.cli.stderr import print_error
from sandherd.client.context import holder
from sandherd.client.errors import HerdError, checked_name
from sandherd.client.named_contexts import (
    CONTEXT_VARIABLE,
    NamedContexts,
    contexts_file,
    new_context,
    read_contexts,
    write_contexts,
)
from sandherd.client.terminal_text import write_text
from sandherd.contracts.errors import Code
from sandherd.private_files import exclusive

Values = tuple[str | None, Path | None, str | None, Path | None]
"""URL, credentials, project and authorities of a new context."""
_PRECEDING_VARIABLES: Final = (CONTEXT_VARIABLE, "SANDHERD_HOME", "NATS_URL", "SANDHERD_CREDENTIALS")
"""The environment variables that take precedence over the current context."""


def use(name: str, output: Format) -> int:
    """Make a context the current one, and warn of variables that take precedence. Raises `HerdError`, `OSError`."""
    status = change(name, output, lambda contexts: contexts.use(name), f"the current context is {name}")
    _warn_of_variables(name)
    return status


def _warn_of_variables(name: str) -> None:
    for variable in _PRECEDING_VARIABLES:
        value = os.environ.get(variable)
        if value and (variable, value) != (CONTEXT_VARIABLE, name):
            print_error(f"{variable} is set and takes precedence over the current context; unset it to use {name}")


def change(name: str, output: Format, edit: Callable[[NamedContexts], NamedContexts], message: str) -> int:
    """Change the contexts with `edit`, and print `message`. Raises `HerdError`, `OSError`."""
    file = contexts_file()
    edit(read_contexts(file))  # a refused change must not create the folder
    with exclusive(file):
        changed = edit(read_contexts(file))
        write_contexts(file, changed)
    if output.is_json:
        print_document(output, {"context": name, "current": changed.current})
    else:
        write_text(message)
    return 0


def add(name: str, values: Values, output: Format, *, replace: bool, use: bool) -> int:
    """Read the credential of a new context, and add the context. Raises `HerdError`."""
    url, credentials, project, ca = values
    if url is None or credentials is None:
        option = "--url" if url is None else "--credentials"
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{option} is missing",
            field=option.strip("-"),
            remedy="a context needs --url with the address of the broker, and --credentials with a .creds file",
        )
    project_name = None if project is None else checked_name(project, "project")
    # The credential is also read if --project is given: an invalid file is reported now and not at the first use.
    credential_project = holder(credentials).project
    context = new_context(url, credentials, project_name or credential_project, ca)
    if context.ca is not None and not context.ca.is_file():
        raise HerdError.of(
            Code.INVALID_FIELD, f"ca: {context.ca} is not a file", field="ca", remedy="name a PEM file of certificates"
        )

    def edit(named_contexts: NamedContexts) -> NamedContexts:
        added = named_contexts.add(name, context, replace=replace)
        return added.use(name) if use else added

    status = change(name, output, edit, f"context {name} is added" + (", and is the current one" if use else ""))
    if use:
        _warn_of_variables(name)
    return status
