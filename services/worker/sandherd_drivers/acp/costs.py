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
        self._told: int | None = None if resumed else 0
        """None: the first total of a session that is gone on with is not of our making, and sets the mark."""
        self._uncharged = 0

    def take(self, cost: Json | None) -> None:
        """A running total. One in another currency can't be charged, and is left out."""
        if not cost or cost.get("currency") != "USD":
            return
        total = round(float(cost.get("amount") or 0) * 1_000_000)
        if self._told is not None:
            self._uncharged += max(0, total - self._told)
        self._told = total

    def charge(self, usage: Json | None) -> Json | None:
        """The fields of `agent.usage` for a turn that ends with these tokens; None if there is nothing to charge."""
        tokens = {ours: int((usage or {}).get(theirs) or 0) for theirs, ours in _TOKENS.items()}
        fields = tokens | {"cost_micro_usd": self._uncharged}
        self._uncharged = 0
        return fields if any(fields.values()) else None
