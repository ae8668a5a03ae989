"""OpenHands' Runtime API as a provider of boxes: it starts agent servers, which execute everything else."""
