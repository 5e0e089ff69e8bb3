"""Understand shell text and classify tool calls: pure, and importing nothing above it."""
