"""All sandboxes under watch, by the stream: what lives, what ended lately, and how far the stream was read."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from monitor.fold import fold, step
from monitor.state import Key, Seen, Watched

MOST_TOMBSTONES: Final = 10_000


class Herd:
    """The states of all live sandboxes. What an event costs does not depend on how many there are."""

    def __init__(self, position: int = 0, live: Iterable[Watched] = (), ended: Iterable[Key] = ()) -> None:
        self.position = position
        """The stream sequence of the last event that was read."""
        self.live: dict[Key, Watched] = {state.key: state for state in live}
        self.ended: OrderedDict[Key, None] = OrderedDict.fromkeys(ended)
        """Sandboxes that ended lately: a late event of theirs brings none of them back."""

    def take(self, seen: Seen) -> Watched | None:
        """Fold one event in. Returns the state after it, or None if it is about no sandbox that is watched."""
        key = seen.project, seen.entity
        if key in self.ended:
            return None
        state = fold(self.live.get(key), seen)
        return None if state is None else self._keep(state)

    def did(self, key: Key, seen: Seen) -> None:
        """Fold in at once what the monitor itself has just said; reading it from the stream changes nothing more."""
        state = self.live.get(key)
        if state is not None:
            self._keep(step(state, seen))

    def put(self, state: Watched) -> None:
        """Replace the state of a sandbox that is still watched."""
        if state.key in self.live:
            self._keep(state)

    def forget(self, key: Key) -> None:
        """It is known from elsewhere that this sandbox is gone."""
        self.live.pop(key, None)
        self.ended[key] = None
        while len(self.ended) > MOST_TOMBSTONES:
            self.ended.popitem(last=False)

    def _keep(self, state: Watched) -> Watched:
        """Keep the state, unless its sandbox has ended and nothing is left to be said of it."""
        self.live[state.key] = state
        if state.ended and state.steering is None:
            self.forget(state.key)
        return state
