"""The commands' output on a terminal."""
