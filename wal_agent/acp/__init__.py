"""Serve the Agent Client Protocol for agents that speak it, each session as a run of a job of its own (ACP.md)."""
