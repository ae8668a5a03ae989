"""The settings of the conductor."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from sandherd.settings.fields import NONE, Env, Names

ConductorMode = Literal["off", "report", "inform", "ask", "pause"]
IGNORED_FILES: Final = frozenset(
    {
        *("*.lock", "*-lock.json", "pnpm-lock.yaml", "go.sum", "npm-shrinkwrap.json"),
        *("*.min.js", "*.min.css", "*.map", "*.snap", "*.pyc", "*_pb2.py", "*_pb2_grpc.py", "*.pb.go", "*.generated.*"),
        *("node_modules", "__pycache__", ".venv", "dist", "build", "target", "coverage", ".git", ".cache"),
    }
)
"""Lock files, generated files, and folders of dependencies and build results, which programs write and not agents."""


class CoordinationSettings(BaseModel, defer_build=True):
    """Settings of how the monitor handles sandboxes that hinder each other."""

    conductor: Annotated[ConductorMode, Env("SANDHERD_CONDUCTOR")] = "inform"
    """What the monitor does about sandboxes of a project that hinder each other: `report` publishes findings, `inform`
    also sends the agents a message, `ask` also notifies users, `pause` also pauses the later one of two sandboxes. With
    `off`, sandboxes are not compared. [docs/conductor.md](conductor.md)."""
    conductor_ignore: Annotated[
        frozenset[Annotated[str, Field(pattern=r"^[!-~]{1,200}$")]], Names, NONE, Env("SANDHERD_CONDUCTOR_IGNORE")
    ] = IGNORED_FILES
    """Files that two sandboxes may edit without a conflict, such as generated ones: shell patterns without spaces. A
    pattern with a slash has to match the entire path, another one a part of the path. A value replaces the default;
    `none`: no files."""
