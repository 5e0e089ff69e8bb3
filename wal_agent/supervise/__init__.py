"""The run: the agent's process, its hooks, the heartbeat, autosave and the end (ARCHITECTURE.md)."""
