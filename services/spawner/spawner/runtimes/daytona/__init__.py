"""Boxes as sandboxes of Daytona."""
