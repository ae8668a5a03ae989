"""GitLab's operations as an OpenAPI document: schemas of responses from the types of the client @gitbeaker/core.

GitLab publishes no such document in a package registry. The rest is written here by GitLab's documentation: the
operations, their statuses and requests, and the differences in `_corrected`.
"""

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from tests.npm_packages import FORGE_DOCUMENTS, ROOT, node_with

_STORE: Final = ROOT / "build" / "openapi"
_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}
_YES: Final = {"type": "boolean"}
_PAGES: Final = {"page": _NUMBER, "per_page": _NUMBER}
_LABELS: Final = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_MERGE_STATUSES: Final = [
    "approvals_syncing", "checking", "ci_must_pass", "ci_still_running", "commits_status", "conflict",
    "discussions_not_resolved", "draft_status", "jira_association_missing", "mergeable", "merge_request_blocked",
    "merge_time", "need_rebase", "not_approved", "not_open", "preparing", "requested_changes",
    "security_policy_violations", "status_checks_must_pass", "title_regex", "unchecked",
]  # fmt: skip
_PARTIAL: Final = ("ProjectSchema", "IssueSchemaWithBasicLabels", "UserSchema", "ExpandedPipelineSchema", "LabelSchema")
"""Types of which the double sends a part: their properties are checked, but none is required."""
_MR: Final = "/projects/{id}/merge_requests/{iid}"
_MR_FIELDS: Final = {
    "title": _TEXT, "description": _TEXT, "target_branch": _TEXT, "labels": _LABELS,
    "reviewer_ids": {"type": "array", "items": _NUMBER}, "remove_source_branch": _YES, "squash": _YES,
}  # fmt: skip
_MERGE_FIELDS: Final = {
    "sha": _TEXT, "squash": _YES, "should_remove_source_branch": _YES, "merge_when_pipeline_succeeds": _YES,
    "auto_merge": _YES, "merge_commit_message": _TEXT, "squash_commit_message": _TEXT,
}  # fmt: skip
_FILTERS: Final = {
    "state": {"enum": ["opened", "closed", "locked", "merged", "all"]}, "source_branch": _TEXT, "target_branch": _TEXT,
    "order_by": _TEXT, "sort": {"enum": ["asc", "desc"]}, **_PAGES,
}  # fmt: skip
_OPERATIONS: Final[dict[str, tuple[str, str, dict[str, Any], dict[str, Any] | None, list[str], dict[int, str]]]] = {
    # method, path, query, body, required fields of the body, responses
    "user": ("get", "/user", {}, None, [], {200: "UserSchema"}),
    "project": ("get", "/projects/{id}", {}, None, [], {200: "ProjectSchema"}),
    "branches": ("get", "/projects/{id}/repository/branches", {"search": _TEXT, **_PAGES}, None, [],
                 {200: "BranchSchema[]"}),
    "branch": ("get", "/projects/{id}/repository/branches/{branch}", {}, None, [], {200: "BranchSchema"}),
    "create_branch": ("post", "/projects/{id}/repository/branches", {"branch": _TEXT, "ref": _TEXT},
                      {"branch": _TEXT, "ref": _TEXT}, [], {201: "BranchSchema", 400: ""}),
    "delete_branch": ("delete", "/projects/{id}/repository/branches/{branch}", {}, None, [], {204: ""}),
    "protected_branches": ("get", "/projects/{id}/protected_branches", {"search": _TEXT, **_PAGES}, None, [],
                           {200: "ProtectedBranchSchema[]"}),
    "protected_branch": ("get", "/projects/{id}/protected_branches/{branch}", {}, None, [],
                         {200: "ProtectedBranchSchema"}),
    "pipelines": ("get", "/projects/{id}/pipelines", {"sha": _TEXT, "ref": _TEXT, **_PAGES}, None, [],
                  {200: "PipelineSchema[]"}),
    "commit_statuses": ("get", "/projects/{id}/repository/commits/{sha}/statuses", _PAGES, None, [],
                        {200: "CommitStatusSchema[]"}),
    "merge_requests": ("get", "/projects/{id}/merge_requests", _FILTERS, None, [],
                       {200: "MergeRequestSchemaWithBasicLabels[]"}),
    "create_merge_request": ("post", "/projects/{id}/merge_requests", {}, {**_MR_FIELDS, "source_branch": _TEXT},
                             ["source_branch", "target_branch", "title"],
                             {201: "ExpandedMergeRequestSchema", 409: "", 422: ""}),
    "merge_request": ("get", _MR, {"include_rebase_in_progress": _YES}, None, [], {200: "ExpandedMergeRequestSchema"}),
    "update_merge_request": ("put", _MR, {}, {**_MR_FIELDS, "add_labels": _LABELS, "remove_labels": _LABELS,
                                              "state_event": {"enum": ["close", "reopen"]}}, [],
                             {200: "ExpandedMergeRequestSchema", 409: "", 422: ""}),
    "merge": ("put", f"{_MR}/merge", {}, _MERGE_FIELDS, [],
              {200: "ExpandedMergeRequestSchema", 405: "", 409: "", 422: ""}),
    "rebase": ("put", f"{_MR}/rebase", {}, {"skip_ci": _YES}, [], {202: "MergeRequestRebaseSchema", 409: ""}),
    "approvals": ("get", f"{_MR}/approvals", {}, None, [], {200: "MergeRequestLevelMergeRequestApprovalSchema"}),
    "approve": ("post", f"{_MR}/approve", {}, {"sha": _TEXT}, [],
                {201: "MergeRequestLevelMergeRequestApprovalSchema", 409: ""}),
    "notes": ("get", f"{_MR}/notes", {"sort": _TEXT, "order_by": _TEXT, **_PAGES}, None, [],
              {200: "MergeRequestNoteSchema[]"}),
    "create_note": ("post", f"{_MR}/notes", {}, {"body": _TEXT}, ["body"], {201: "MergeRequestNoteSchema"}),
    "merge_request_pipelines": ("get", f"{_MR}/pipelines", _PAGES, None, [], {200: "PipelineSchema[]"}),
    "labels": ("get", "/projects/{id}/labels", _PAGES, None, [], {200: "LabelSchema[]"}),
    "issue": ("get", "/projects/{id}/issues/{iid}", {}, None, [], {200: "IssueSchemaWithBasicLabels"}),
}  # fmt: skip


def gitlab_document() -> dict[str, Any]:
    """All operations that the double serves; the types are converted once."""
    lock = (FORGE_DOCUMENTS / "package-lock.json").read_bytes()
    digest = hashlib.sha256(lock + Path(__file__).read_bytes()).hexdigest()[:16]
    stored = _STORE / f"gitlab-{digest}.json"
    if not stored.exists():
        _STORE.mkdir(parents=True, exist_ok=True)
        schemas = _corrected(_converted())
        document = {"openapi": "3.0.3", "info": {}, "paths": _paths(), "components": {"schemas": schemas}}
        beside = stored.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(document))
        beside.replace(stored)
    found: dict[str, Any] = json.loads(stored.read_bytes())
    return found


def _converted() -> dict[str, Any]:
    names = {kind.removesuffix("[]") for *_, kinds in _OPERATIONS.values() for kind in kinds.values() if kind}
    node, folder = node_with(FORGE_DOCUMENTS)
    command = [node, "gitlab.mjs", *sorted(names)]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=300)
    text = re.sub(r'"#/definitions/([^"]+)"', lambda found: f'"{_reference(unquote(found[1]))}"', done.stdout)
    return {_plain(name): schema for name, schema in json.loads(text).items()}


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name)


def _reference(name: str) -> str:
    return f"#/components/schemas/{_plain(name)}"


def _corrected(schemas: dict[str, Any]) -> dict[str, Any]:
    """Correct the types by GitLab's documentation: they lack newer values and fields."""
    for name in _PARTIAL:
        schemas[name].pop("required", None)
    for schema in schemas.values():
        if "detailed_merge_status" in schema.get("properties", {}):
            schema["properties"]["detailed_merge_status"] = {"enum": _MERGE_STATUSES}
    schemas["MergeRequestLevelMergeRequestApprovalSchema"]["properties"]["approved"] = _YES
    return schemas


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for name, (method, path, query, body, required, kinds) in _OPERATIONS.items():
        in_path = {each: _NUMBER if each == "iid" else _TEXT for each in re.findall(r"{(\w+)}", path)}
        described: dict[str, Any] = {
            "operationId": name,
            # GitLab also accepts each field in the query, where python-gitlab sends `sha`.
            "parameters": [*_parameters("path", in_path), *_parameters("query", {**(body or {}), **query})],
            "responses": {str(status): _response(kind) for status, kind in kinds.items()},
        }
        if body is not None:
            schema = {"type": "object", "properties": body, "required": required}
            described["requestBody"] = {
                "required": bool(required),
                "content": {"application/json": {"schema": schema}},
            }
        paths.setdefault(path, {})[method] = described
    return paths


def _parameters(place: str, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"in": place, "name": name, "schema": schema} for name, schema in schemas.items()]


def _response(kind: str) -> dict[str, Any]:
    if not kind:
        return {}
    one = {"$ref": _reference(kind.removesuffix("[]"))}
    schema = {"type": "array", "items": one} if kind.endswith("[]") else one
    return {"content": {"application/json": {"schema": schema}}}
