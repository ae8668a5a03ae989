"""Shows the results of commands as text or JSON."""
