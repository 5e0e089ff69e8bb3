"""A resumed session until its agent works in it: the first turn waits for that, and what the resume left is cleared."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from wal_agent.agents.base import Agent, Deny, Env, LoadsLate
from wal_agent.plainfile import open_plain

LOADING = 20.0  # seconds; the client of a firm hook waits 25 (agents/hook_line.py)
_STEP = 0.05

NOT_LOADED = Deny(
    f"wal-agent: the session was not loaded within {LOADING:.0f} s, so the model was not asked: it would have known "
    'neither the conversation nor what became of the call in flight. Once the conversation stands above, say "go on".'
)


class Resuming:
    """From any thread."""

    def __init__(self, agent: Agent, session: str, workspace: Path, env: Env) -> None:
        """To be made before the agent starts: its session's file has not been taken up yet."""
        self._agent, self._session, self._workspace, self._env = agent, session, workspace, env
        self._lock = threading.Lock()
        self._over = False
        self._before = self._main()[0] if isinstance(agent, LoadsLate) else 0  # 0: nothing is waited for

    def look(self) -> bool:
        """Whether the agent works in the session. Once it does, what the resume left is cleared: at once, since another
        start of the agent may take it for a reason to delete the session."""
        with self._lock:
            if not self._over and self._loaded():
                self._agent.tidy(self._session, self._workspace, self._env)
                self._over = True
            return self._over

    def wait(
        self, session: str, ending: Callable[[], bool], sleep: Callable[[float], None] = time.sleep
    ) -> Deny | None:
        """Before a turn of `session`: None once it may begin. `ending`: nothing need be waited for any more."""
        if session != self._session:  # a person has begun another one
            return None
        for _ in range(round(LOADING / _STEP)):
            if self.look() or ending():
                break
            sleep(_STEP)
        return None if self._over else NOT_LOADED

    def _loaded(self) -> bool:
        if self._before == 0:
            return True
        size, whole = self._main()
        return size > self._before or not whole

    def _main(self) -> tuple[int, bool]:
        """The main file's size, and whether it is whole: it may be deleted meanwhile, and the agent that has loaded it
        goes on in another one (SessionFile.begins)."""
        files = self._agent.session_files(self._session, self._workspace, self._env)
        main = next((f for f in files if f.name == self._agent.main_file), None)
        if main is None:
            return 0, True
        try:
            with open_plain(main.path) as file:
                fd = file.fileno()
                return os.fstat(fd).st_size, main.begins is None or main.begins(fd)
        except OSError:
            return 0, True
