"""The scripted model of `wal-agent demo` and `doctor`, for tests with Gemini."""

from __future__ import annotations

from wal_agent.rehearsal.dialects import GeminiModel
from wal_agent.rehearsal.model import Turn

__all__ = ["GeminiModel", "Turn"]
