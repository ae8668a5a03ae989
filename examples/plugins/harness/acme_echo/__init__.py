"""A harness of Sandherd: an agent that repeats its task. The driver imports this too, so nothing is imported here."""
