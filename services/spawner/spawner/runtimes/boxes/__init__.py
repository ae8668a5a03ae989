"""Sandboxes that a provider makes: one runtime for all of them, and the small interface that each provider has."""
