"""The rules of the monitor, a module each. `registry` finds them; `rule` has what they are made of."""
