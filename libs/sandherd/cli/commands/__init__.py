"""The commands of `sandherd`, one module per group."""
