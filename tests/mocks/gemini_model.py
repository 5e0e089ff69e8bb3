"""The scripted model of `wal-agent demo` and `doctor`, for tests with Gemini."""

from __future__ import annotations

from wal_agent.loopback.gemini import GeminiModel
from wal_agent.loopback.model import Turn

__all__ = ["GeminiModel", "Turn"]
