"""OpenHands' Runtime API as a provider of boxes. It starts agent servers, which execute everything else."""
