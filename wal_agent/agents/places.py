"""What the general code has to know of each agent without loading it: where it keeps its state, and which files of a
project it reads. A new agent is registered by its row in PLACES."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from wal_agent.paths import CREDENTIALS


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """`state`: in HOME, its own state with its credentials, which is never captured nor put back. In a project:
    `memory`, the files that it reads at each start, and `skills`, the folders of its skills."""

    state: tuple[str, ...]
    memory: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()


PLACES: Mapping[str, Places] = {
    "gemini": Places(state=(".gemini",), memory=("GEMINI.md", ".gemini/GEMINI.md"), skills=(".gemini/skills",)),
    "claude": Places(
        state=(".claude", ".claude.json"), memory=("CLAUDE.md", ".claude/CLAUDE.md"), skills=(".claude/skills",)
    ),
    "codex": Places(state=(".codex",), memory=("AGENTS.md",), skills=(".agents/skills",)),
    "copilot": Places(state=(".copilot",), memory=("AGENTS.md",)),
    "pi": Places(state=(".pi",), memory=("AGENTS.md",)),
    "opencode": Places(state=(".local/share/opencode",), memory=("AGENTS.md",)),
    "kilo": Places(state=(".local/share/kilo",), memory=("AGENTS.md",)),
    "qwen": Places(state=(".qwen",)),
    "kimi": Places(state=(".kimi-code",), memory=("AGENTS.md",)),
    "generic": Places(state=(), skills=("skills",)),
}
MEMORY = tuple(dict.fromkeys(name for places in PLACES.values() for name in places.memory))
SKILLS = tuple(dict.fromkeys(name for places in PLACES.values() for name in places.skills))
SECRET = (*(name for places in PLACES.values() for name in places.state), *CREDENTIALS)
"""In HOME: what holds credentials, the agents' and other programs'."""


def in_a_secret_place(parts: Sequence[str]) -> bool:
    """Whether a path under HOME is, or is in, what holds credentials. Case counts for nothing: some disks say so."""
    low = "/".join(parts).lower()
    return any(low == known or low.startswith(known + "/") for known in SECRET)
