"""Understand a tool call: what it runs, and whether it is another one again."""
