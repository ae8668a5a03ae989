"""The message-relay: keeps messages to agents, and hands each to its worker until a receipt comes back."""
