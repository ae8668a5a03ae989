"""The herd's own tools for agents: a server of the Model Context Protocol, which an agent's SDK starts."""
