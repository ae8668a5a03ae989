"""The values of the Conductor's settings."""

from typing import Final, Literal

ConductorMode = Literal["off", "report", "inform", "ask", "pause"]
IGNORED_FILES: Final = frozenset(
    {
        *("*.lock", "*-lock.json", "pnpm-lock.yaml", "go.sum", "npm-shrinkwrap.json"),
        *("*.min.js", "*.min.css", "*.map", "*.snap", "*.pyc", "*_pb2.py", "*_pb2_grpc.py", "*.pb.go", "*.generated.*"),
        *("node_modules", "__pycache__", ".venv", "dist", "build", "target", "coverage", ".git", ".cache"),
    }
)
"""Lock files, generated files, and folders of dependencies and results: programs write them, not agents."""
