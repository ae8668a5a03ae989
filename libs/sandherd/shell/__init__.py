"""Commands of a shell, parsed within limits and never executed: which programs they run, with which arguments."""
