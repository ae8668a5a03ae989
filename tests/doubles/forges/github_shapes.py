"""GitHub's JSON of accounts, repositories, refs, commits, issues and labels."""

from base64 import b64encode
from typing import Any, Final

from tests.doubles.forges.bare_repository import Commit
from tests.doubles.forges.clock import stamp
from tests.doubles.forges.forge_state import Account, Check, Comment, Issue, Label, Repository

_OF_USERS: Final = (
    "followers", "organizations", "repos", "received_events", "subscriptions",
)  # fmt: skip
_USER_TEMPLATES: Final = {
    "following_url": "/following{/other_user}",
    "gists_url": "/gists{/gist_id}",
    "starred_url": "/starred{/owner}{/repo}",
    "events_url": "/events{/privacy}",
}
_OF_REPOSITORIES: Final = (
    "contributors", "deployments", "downloads", "events", "forks", "hooks", "languages", "merges", "stargazers",
    "subscribers", "subscription", "tags", "teams",
)  # fmt: skip
_REPOSITORY_TEMPLATES: Final = {
    "archive_url": "/{archive_format}{/ref}",
    "assignees_url": "/assignees{/user}",
    "blobs_url": "/git/blobs{/sha}",
    "branches_url": "/branches{/branch}",
    "collaborators_url": "/collaborators{/collaborator}",
    "comments_url": "/comments{/number}",
    "commits_url": "/commits{/sha}",
    "compare_url": "/compare/{base}...{head}",
    "contents_url": "/contents/{+path}",
    "git_commits_url": "/git/commits{/sha}",
    "git_refs_url": "/git/refs{/sha}",
    "git_tags_url": "/git/tags{/sha}",
    "issue_comment_url": "/issues/comments{/number}",
    "issue_events_url": "/issues/events{/number}",
    "issues_url": "/issues{/number}",
    "keys_url": "/keys{/key_id}",
    "labels_url": "/labels{/name}",
    "milestones_url": "/milestones{/number}",
    "notifications_url": "/notifications{?since,all,participating}",
    "pulls_url": "/pulls{/number}",
    "releases_url": "/releases{/id}",
    "statuses_url": "/statuses/{sha}",
    "trees_url": "/git/trees{/sha}",
}


class Shapes:
    """Objects as GitHub's API sends them, with URLs of this server."""

    def __init__(self, url: str, api: str) -> None:
        self.url, self.api = url, api

    def account(self, account: Account) -> dict[str, Any]:
        """`simple-user`."""
        base = f"{self.api}/users/{account.login}"
        return {
            "login": account.login,
            "id": account.id,
            "node_id": node("U", account.id),
            "avatar_url": f"{self.url}/avatars/{account.id}",
            "gravatar_id": "",
            "url": base,
            "html_url": f"{self.url}/{account.login}",
            "type": account.kind,
            "site_admin": False,
            **{f"{name}_url": f"{base}/{name.removeprefix('received_')}" for name in _OF_USERS},
            **{name: base + suffix for name, suffix in _USER_TEMPLATES.items()},
        }

    def repository(self, repository: Repository) -> dict[str, Any]:
        """`repository`, as pull requests contain it."""
        base, html = f"{self.api}/repos/{repository.full_name}", f"{self.url}/{repository.full_name}"
        urls = {f"{name}_url": f"{base}/{name}" for name in _OF_REPOSITORIES}
        templates = {name: base + suffix for name, suffix in _REPOSITORY_TEMPLATES.items()}
        features = ("issues", "projects", "wiki", "pages", "downloads", "discussions")
        counts = ("forks", "forks_count", "stargazers_count", "watchers", "watchers_count", "size")
        opened = sum(one.state == "open" for one in repository.issues.values())
        return {
            **self.minimal_repository(repository),
            **urls, **templates,
            "html_url": html, "clone_url": f"{html}.git", "svn_url": html, "mirror_url": None,
            "git_url": f"{html}.git".replace("http:", "git:"), "ssh_url": f"git@127.0.0.1:{repository.full_name}.git",
            **{f"has_{name}": name == "issues" for name in features},
            **dict.fromkeys(counts, 0),
            "open_issues": opened, "open_issues_count": opened,
            "default_branch": repository.default_branch,
            "topics": [],
            "homepage": None, "language": None, "license": None,
            "archived": False, "disabled": False, "visibility": "private" if repository.private else "public",
            "pushed_at": stamp(repository.created), "created_at": stamp(repository.created),
            "updated_at": stamp(repository.created),
            "permissions": {"admin": False, "maintain": False, "push": True, "triage": True, "pull": True},
        }  # fmt: skip

    def full_repository(self, repository: Repository) -> dict[str, Any]:
        """`full-repository`, as a get of it sends."""
        return {
            **self.repository(repository),
            "network_count": 0,
            "subscribers_count": 0,
            "allow_merge_commit": "merge" in repository.methods,
            "allow_squash_merge": "squash" in repository.methods,
            "allow_rebase_merge": "rebase" in repository.methods,
            "allow_auto_merge": repository.allow_auto_merge,
            "delete_branch_on_merge": False,
            "allow_update_branch": True,
        }

    def minimal_repository(self, repository: Repository) -> dict[str, Any]:
        """The fields that all forms of a repository have."""
        base = f"{self.api}/repos/{repository.full_name}"
        return {
            "id": repository.id,
            "node_id": node("R", repository.id),
            "name": repository.name,
            "full_name": repository.full_name,
            "owner": self.account(repository.owner),
            "private": repository.private,
            "html_url": f"{self.url}/{repository.full_name}",
            "description": None,
            "fork": False,
            "url": base,
            **{f"{name}_url": f"{base}/{name}" for name in _OF_REPOSITORIES},
            **{name: base + suffix for name, suffix in _REPOSITORY_TEMPLATES.items()},
        }

    def ref(self, repository: Repository, name: str, sha: str) -> dict[str, Any]:
        """`git-ref`."""
        base = f"{self.api}/repos/{repository.full_name}/git"
        pointed = {"type": "commit", "sha": sha, "url": f"{base}/commits/{sha}"}
        return {"ref": name, "node_id": node("REF", name), "url": f"{base}/{name}", "object": pointed}

    def commit(self, repository: Repository, commit: Commit) -> dict[str, Any]:
        """`commit`."""
        base = f"{self.api}/repos/{repository.full_name}"
        html = f"{self.url}/{repository.full_name}/commit"
        person = {"name": commit.author[0], "email": commit.author[1], "date": commit.date}
        parents = [{"sha": one, "url": f"{base}/commits/{one}", "html_url": f"{html}/{one}"} for one in commit.parents]
        return {
            "sha": commit.sha,
            "node_id": node("C", commit.sha),
            "url": f"{base}/commits/{commit.sha}",
            "html_url": f"{html}/{commit.sha}",
            "comments_url": f"{base}/commits/{commit.sha}/comments",
            "author": None,
            "committer": None,
            "parents": parents,
            "commit": {
                "url": f"{base}/git/commits/{commit.sha}",
                "author": person,
                "committer": person,
                "message": commit.message,
                "comment_count": 0,
                "verification": {
                    "verified": commit.sha in repository.verified,
                    "reason": "valid" if commit.sha in repository.verified else "unsigned",
                    "payload": None,
                    "signature": None,
                    "verified_at": None,
                },
                "tree": {"sha": commit.tree, "url": f"{base}/git/trees/{commit.tree}"},
            },
        }

    def label(self, repository: Repository, label: Label) -> dict[str, Any]:
        """`label`."""
        return {
            "id": label.id,
            "node_id": node("LA", label.id),
            "url": f"{self.api}/repos/{repository.full_name}/labels/{label.name}",
            "name": label.name,
            "description": label.description,
            "color": label.color,
            "default": False,
        }

    def comment(self, repository: Repository, issue: Issue, comment: Comment) -> dict[str, Any]:
        """`issue-comment`."""
        base = f"{self.api}/repos/{repository.full_name}/issues"
        return {
            "id": comment.id,
            "node_id": node("IC", comment.id),
            "url": f"{base}/comments/{comment.id}",
            "html_url": f"{self.url}/{repository.full_name}/issues/{issue.number}#issuecomment-{comment.id}",
            "issue_url": f"{base}/{issue.number}",
            "body": comment.body,
            "user": self.account(comment.author),
            "created_at": stamp(comment.at),
            "updated_at": stamp(comment.at),
            "author_association": "MEMBER",
        }

    def status(self, repository: Repository, status: Check) -> dict[str, Any]:
        """`simple-commit-status`."""
        return {
            "id": status.id,
            "node_id": node("SC", status.id),
            "url": f"{self.api}/repos/{repository.full_name}/statuses/{status.commit}",
            "avatar_url": f"{self.url}/avatars/0",
            "state": status.conclusion,
            "description": None,
            "target_url": None,
            "context": status.name,
            "created_at": stamp(status.at),
            "updated_at": stamp(status.at),
        }

    def full_status(self, repository: Repository, status: Check, creator: Account) -> dict[str, Any]:
        """`status`, which names its creator."""
        return {**self.status(repository, status), "creator": self.account(creator)}


def node(kind: str, value: object) -> str:
    """The global id of an object, as GraphQL uses it."""
    return f"{kind}_" + b64encode(str(value).encode()).decode().rstrip("=")
