"""Parses command-line arguments into typed values."""
