"""The checks of `sandherd doctor`."""
