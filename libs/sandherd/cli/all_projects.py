"""Selects all projects for an operator."""

from dataclasses import replace

from sandherd.client.context import Context, holder
from sandherd.contracts.names import FLEET


def with_all_projects(context: Context) -> Context:
    """The context with all projects, if it names no project and its credential is for all of them.

    Otherwise the context is returned unchanged.
    """
    is_named = context.sources.get("project", "default") != "default"
    if is_named or context.credentials is None or holder(context.credentials).project is not None:
        return context
    return replace(context, project=FLEET, sources={**context.sources, "project": "credential"})
