"""The pool: warm sandboxes, started before they are needed, without an identity and without a credential."""
