"""The checks of a herd over its broker, for `sandherd doctor` and the HTTP API. Their remedies name no command."""
