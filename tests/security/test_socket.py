"""Whatever a tool says over its run's socket: it gets an answer, and the run has no bug of its own to report."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.supervise.crew import Post
from wal_agent.supervise import control
from wal_agent.supervise.ancestry import Ancestry, Process
from wal_agent.supervise.checkpoints import Checkpointer
from wal_agent.supervise.conversation import HookHandler
from wal_agent.supervise.exits import ShutdownPlan
from wal_agent.supervise.hook_server import HookRequest
from wal_agent.supervise.live import Live
from wal_agent.supervise.steps import StepKeeper

TOOL = Ancestry((Process(4000, 1, 1.0, 1),), "supervisor")
EVENTS = (
    *(control.ACK, control.PAUSE, control.SETTLE, control.CHECKPOINT, control.MARK, control.REWIND),
    *(control.STEP, control.TASK, "wal-agent.no"),
)
FIELDS = (
    *("at", "ask", "because", "call", "caller", "code", "command", "data", "do", "done", "epoch", "if_version", "job"),
    *("name", "note", "phase", "place", "plan", "progress", "reason", "retries", "seconds", "step", "title", "ttl"),
)
WELL: dict[str, dict[str, Any]] = {
    control.PAUSE: {"seconds": 60, "reason": "x"},
    control.SETTLE: {"call": 1, "because": "x"},
    control.STEP: {"do": "begin", "step": "x", "command": ["x"]},
    control.MARK: {"name": "x"},
}
JUNK = ("Infinity", "NaN", "1" + "0" * 400, '"\\ud800"', '"\\u0000"', "null", "[]", "[[]]", "{}", '"x"')


class Run(Live):
    """What answers commands in a run, without its agent."""

    def __init__(self, post: Post) -> None:
        context = post.context
        self._context, self._agent, self._clock, self._writer = context, context.agent, context.clock, post.job.writer
        self.gate, self.checkpoints, self._bounds = post.gate, Checkpointer(context), None
        self._keeper = cast(Any, SimpleNamespace(may_allow=lambda: False))
        self._steps, self._steps_lock = StepKeeper(context, Path("/nowhere/hook.sock")), threading.Lock()
        self._shutdown = cast(Any, SimpleNamespace(down=None))
        self.conversation = cast(Any, SimpleNamespace(session="s"))

    def shut_down(self, down: ShutdownPlan) -> None:
        pass


@pytest.mark.parametrize("event", EVENTS)
def test_whatever_a_tool_asks_has_an_answer(tmp_path: Path, event: str) -> None:
    post = Post(tmp_path)
    handler = HookHandler(post.context, cast(Any, None), cast(Any, None), Run(post))
    asked = [
        *JUNK,
        *(json.dumps({**WELL.get(event, {}), name: "?"}).replace('"?"', junk) for name in FIELDS for junk in JUNK),
    ]
    with post.committing():
        for words in [*asked, "[" * 100_000, "\xff", ""]:
            said = handler.answer(HookRequest("wal-agent", event, words.encode("latin-1"), TOOL))
            assert said is not None and isinstance(json.loads(said), dict), words
    assert not [record for record in post.log() if type(record).__name__ in ("End", "Paused")]
