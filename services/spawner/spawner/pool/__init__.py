"""The pool: sandboxes that are started before anybody needs them, without an identity and without a credential."""
