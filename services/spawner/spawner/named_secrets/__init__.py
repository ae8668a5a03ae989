"""Named secrets of projects. They are stored encrypted, and resolved for each attempt."""
