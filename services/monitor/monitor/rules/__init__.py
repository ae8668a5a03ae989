"""The rules of the monitor, one module for each. `registry` finds them; `rule` defines their interface."""
