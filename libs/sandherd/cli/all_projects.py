"""The context of an operator, who works with all projects."""

from dataclasses import replace

from sandherd.client.context import Context, holder
from sandherd.contracts.names import FLEET


def everywhere(context: Context) -> Context:
    """The context for all projects, if none is named and its credential is for all of them; else unchanged."""
    named = context.sources.get("project", "default") != "default"
    if named or context.credentials is None or holder(context.credentials).project is not None:
        return context
    return replace(context, project=FLEET, sources={**context.sources, "project": "credential"})
