"""Boxes as containers of a Docker Engine."""
