"""OpenCode. Measured on the version in `tested`."""

from __future__ import annotations

from wal_agent.agents.opencode.agent import OpenCode
from wal_agent.agents.opencode.edition import Edition
from wal_agent.agents.program import Broken, Program

tested = "1.18.33"
also: tuple[str, ...] = ()

_OTHER = "OpenCode 2 loads no plugins of 1.x, so wal-agent would see none of its calls."
OPENCODE = Edition(
    title="OpenCode",
    tested=tested,
    also=also,
    program=Program("opencode", "opencode-ai", (Broken(_OTHER, since="2.0.0"),), ("@opencode-ai/cli",)),
    files=("config.json", "opencode.json", "opencode.jsonc"),
    folders=(".opencode",),
    package="@opencode-ai/plugin",
)
agent = OpenCode(OPENCODE)
