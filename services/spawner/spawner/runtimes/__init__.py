"""Where sandboxes are made: one interface, and one module for each kind of place."""
