"""The hooks of one run: an extension in the run's own folder, named on the command line. Nothing of the user's is
touched (I7), and pi refuses to start without an extension that it was told of."""

from __future__ import annotations

import json

from wal_agent.agents.base import Env, HookSetup, Injected
from wal_agent.agents.hook_line import GONE
from wal_agent.errors import ConfigError
from wal_agent.resources import shipped

MARKER = "WAL_AGENT_PI_EXTENSION"
ELSEWHERE = (
    "wal-agent did not run this: the session belongs to another folder than the one that wal-agent saves. Nothing was "
    "changed. Do not try other ways; stop here and say that wal-agent is to be started in that folder."
)
_HOLE = "__WAL_AGENT_SETUP__"


def inject(setup: HookSetup, env: Env) -> Injected:
    place = setup.run_dir / "pi.ts"
    try:
        (setup.run_dir / "wire.js").write_bytes(shipped("hooks/wire.js").read_bytes())
        place.write_text(extension_source(setup), "utf-8")
    except OSError as e:
        raise ConfigError(f"pi's hooks could not be placed in {setup.run_dir}: {e.strerror or e}.") from e
    return Injected(env={MARKER: str(place)})


def extension_source(setup: HookSetup) -> str:
    words = {
        "socket": str(setup.run_dir / "hook.sock"),
        "run": setup.run,
        "skip": setup.skip,
        "protocol": setup.protocol,
        "gone": GONE,
        "elsewhere": ELSEWHERE,
    }
    return shipped("hooks/pi.ts").read_text("utf-8").replace(_HOLE, json.dumps(words), 1)
