"""Sandherd: herds of coding agents in sandboxes, on a message broker."""
