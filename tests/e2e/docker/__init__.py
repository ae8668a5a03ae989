"""A package, so that the fixtures of its tests end with the last of them, and not with the whole run."""
