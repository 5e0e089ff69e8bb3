"""The words of a recovery: what people read on the screen, and what the agent reads."""
