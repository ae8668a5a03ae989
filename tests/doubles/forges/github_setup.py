"""What a test sets up on GitHub (repositories, tokens, apps, issues, reviews), and changes without a client."""

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

from tests.doubles.forges import github_apps
from tests.doubles.forges.bare_repository import BareRepository
from tests.doubles.forges.calls import Call
from tests.doubles.forges.clock import Clock
from tests.doubles.forges.documented import DocumentedForge
from tests.doubles.forges.forge_state import Account, Issue, Pull, Repository, Review, Token
from tests.doubles.forges.github_apps import App, TokenForm, new_token
from tests.doubles.forges.github_pull_shapes import PullShapes
from tests.doubles.forges.github_rules import refusal
from tests.doubles.forges.github_webhooks import Webhooks
from tests.doubles.forges.merges import Method, merge
from tests.doubles.forges.pull_states import refresh

_PREFIXES: Final = {"classic": "ghp_", "fine_grained": "github_pat_", "oauth": "gho_"}


class GitHubSetup(DocumentedForge):
    """The state of GitHub, and the methods with which tests change it."""

    def __init__(self, clock: Clock | None = None, *, unknown_gets: int = 1, update_gets: int = 1) -> None:
        super().__init__(clock)
        self.unknown_gets, self.update_gets = unknown_gets, update_gets
        self.repositories: dict[str, Repository] = {}
        self.accounts = {"team": Account("team", "Organization")}
        self.tokens: dict[str, Token] = {}
        self.apps: dict[str, App] = {}
        """Apps by the principal of their tokens."""
        self.limit = 5000
        """Requests per hour and principal."""
        self.blind_merges: list[Call] = []
        """Merges whose client had not seen that the pull request is mergeable."""
        self.unguarded_merges: list[Call] = []
        """Merges without `sha`."""
        self.webhooks = Webhooks(lambda: self.shapes, self.violations)

    @property
    def shapes(self) -> PullShapes:
        """The JSON of responses, with URLs of this server."""
        return PullShapes(self.url, self.api_url)

    # --- what a test sets up -------------------------------------------------------------------------------------

    def create_repository(self, full_name: str = "team/shop", files: Mapping[str, str] | None = None) -> Repository:
        """Create a repository with one commit on `main`."""
        owner = self.account(full_name.split("/", maxsplit=1)[0])
        git = BareRepository.create(self.folder / "served" / f"{full_name}.git")
        git.commit("main", files or {"README.md": "shop\n"}, "first")
        made = Repository(full_name, owner, git, self.clock.now(), collaborators={"ada", "grace"})
        self.repositories[full_name] = made
        return made

    def account(self, login: str) -> Account:
        """Create a user, an organization or a bot."""
        return self.accounts.setdefault(login, Account(login))

    def person_token(
        self,
        login: str = "ada",
        kind: Literal["classic", "fine_grained", "oauth"] = "classic",
        *,
        expires: datetime | None = None,
        repositories: frozenset[str] | None = None,
        permissions: Mapping[str, str] | None = None,
    ) -> str:
        """Create a user's token."""
        value = _PREFIXES[kind] + secrets.token_hex(18)
        self.tokens[value] = Token(value, self.account(login), kind, expires, repositories, permissions, login)
        return value

    def install_app(self, slug: str = "sandherd", *, form: TokenForm = "opaque", **settings: Any) -> App:
        """Install an app in the organization `team`."""
        bot = self.accounts.setdefault(f"{slug}[bot]", Account(f"{slug}[bot]", "Bot"))
        app = App(slug, bot, self.accounts["team"], form=form, **settings)
        self.apps[f"installation {app.installation}"] = app
        return app

    def installation_token(self, app: App) -> str:
        """Create a token with all permissions of the installation, without a request to the API."""
        expires = self.clock.now() + github_apps.LIFETIME
        return self.issue_token(app, expires, app.repositories, app.permissions)

    def issue_token(
        self, app: App, expires: datetime, repositories: frozenset[str] | None, permissions: Mapping[str, str]
    ) -> str:
        """Create a token of an installation."""
        value, principal = new_token(app, self.clock.now()), f"installation {app.installation}"
        self.tokens[value] = Token(value, app.account, "installation", expires, repositories, permissions, principal)
        return value

    def revoke(self, token: str) -> None:
        """Revoke a token, which is not valid from now on."""
        del self.tokens[token]

    def open_issue(self, repository: Repository, title: str, login: str = "ada") -> Issue:
        """Open an issue that is not a pull request."""
        made = Issue(repository.next_number(), title, None, self.account(login), self.clock.now())
        repository.issues[made.number] = made
        return made

    def review(self, repository: Repository, number: int, state: str = "APPROVED", login: str = "grace") -> Review:
        """Add a review of the latest commit."""
        self.refresh(repository)
        pull = repository.pulls[number]
        made = Review(self.account(login), state, pull.head_sha, self.clock.now())
        pull.reviews.append(made)
        return made

    def record_merge(self, repository: Repository, pull: Pull, commit: str, account: Account) -> None:
        """Record that the pull request is merged as this commit; also for a test that merges as the queue does."""
        pull.state, pull.merge_commit, pull.merged_by = "closed", commit, account
        pull.merged = pull.closed = pull.updated = self.clock.now()
        self.webhooks.pull(repository, pull, "closed", account)

    def finish_queue(self, repository: Repository, number: int, *, merged: bool = True) -> None:
        """Let the merge queue merge a pull request, or remove it because its checks failed."""
        self.refresh(repository)
        pull = repository.pulls[number]
        assert pull.queued, "it is not in the merge queue"
        pull.queued = False
        self.webhooks.pull(repository, pull, "dequeued", pull.author)
        if merged:
            self._merge(repository, pull, "merge")

    def run_auto_merge(self, repository: Repository) -> list[int]:
        """Merge the pull requests with auto-merge that meet their requirements now; returns their numbers."""
        self.refresh(repository)
        found = [one for one in repository.pulls.values() if one.auto_merge]
        ready = [one for one in found if one.auto_merge and refusal(repository, one, one.auto_merge) is None]
        for pull in ready:
            self._merge(repository, pull, pull.auto_merge or "merge")
        return [one.number for one in ready]

    def _merge(self, repository: Repository, pull: Pull, method: Method) -> None:
        made = merge(repository.git, pull.base_sha, pull.head_sha, method, f"{pull.title} (#{pull.number})")
        assert made is not None, "it has conflicts"
        repository.git.move(pull.base, made, pull.base_sha)
        self.record_merge(repository, pull, made, pull.author)

    def refresh(self, repository: Repository) -> None:
        """Bring the pull requests up to date after pushes."""
        before = {number: one.head_sha for number, one in repository.pulls.items()}
        refresh(repository, self.unknown_gets)
        for number, pull in repository.pulls.items():
            if pull.head_sha != before[number]:
                self.webhooks.pull(repository, pull, "synchronize", pull.author)
