"""The driver of Claude Code: the Claude Agent SDK and the program that it includes."""
