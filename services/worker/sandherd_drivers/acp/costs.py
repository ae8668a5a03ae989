"""What a session costs. An agent tells a running total; what is charged is what has come since the last one."""

from typing import Final

from sandherd_drivers.acp.blocks import Json

_TOKENS: Final = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cachedReadTokens": "cache_read_tokens",
    "cachedWriteTokens": "cache_write_tokens",
}


class Costs:
    """The figures of one session, in millionths of a dollar."""

    def __init__(self, *, resumed: bool = False) -> None:
        self._resumed = resumed
        self._told: int | None = None if resumed else 0
        """None: what a session that is gone on with has cost before is not of our making; its first total is the mark.

        Of an agent that doesn't tell it when it takes the session up, that is only after a part of the first turn.
        """
        self._uncharged = 0
        self.lost = False
        """Whether what a part of this turn has cost is not known, and never will be."""

    def take(self, cost: Json | None, *, replayed: bool = False) -> None:
        """A running total; one that has become smaller was begun anew. `replayed`: told before our first turn.

        One in another currency can't be charged, and is left out.
        """
        if not cost or cost.get("currency") != "USD":
            return
        total = round(float(cost.get("amount") or 0) * 1_000_000)
        if self._told is None:
            self.lost = not replayed
        elif not (self._resumed and replayed):
            self._uncharged += total - self._told if total >= self._told else total
        self._told = total

    def charge(self, usage: Json | None) -> Json | None:
        """The fields of `agent.usage` for a turn that ends with these tokens; None if there is nothing to charge."""
        tokens = {ours: int((usage or {}).get(theirs) or 0) for theirs, ours in _TOKENS.items()}
        fields = tokens | {"cost_micro_usd": self._uncharged}
        self._uncharged = 0
        return fields if any(fields.values()) else None
