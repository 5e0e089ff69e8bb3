"""The scripted model of `wal-agent demo` and `doctor`, for tests. As a program: python gemini_model.py TURNS.json"""

from __future__ import annotations

from wal_agent.agents.gemini.loopback import GeminiModel, Turn, main

__all__ = ["GeminiModel", "Turn"]

if __name__ == "__main__":
    main()
