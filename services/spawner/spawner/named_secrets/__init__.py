"""Named secrets of projects: stored encrypted, resolved for each attempt."""
