"""OpenHands' Runtime API as a provider of boxes: it starts agent servers, and through those everything else is done."""
