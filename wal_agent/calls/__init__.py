"""Understand a tool call: what it runs, its class by rules, and whether it repeats another one."""
