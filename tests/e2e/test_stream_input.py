"""A program that sends the prompts on stdin, as the Claude Agent SDK does: it talks to the agent as a person would."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import IO

import pytest

from tests.e2e.scene import Machine, Scene, until
from tests.tiers import once
from wal_agent.rehearsal.model import HistoryText, Turn

TASK = "please do the work"
STREAM = ("--input-format", "stream-json", "--output-format", "stream-json")
ARGS = {"claude": ("--dangerously-skip-permissions", "--print", "--verbose"), "qwen": ("--yolo",)}


class Client:
    """The program. It writes a line for each prompt, and reads what the agent answers."""

    def __init__(self, scene: Scene, machine: Machine) -> None:
        words = (sys.executable, "-m", "wal_agent", "run", machine.agent, "--ttl", "6", "--wait", "--")
        self.out = scene.root / "answers"
        with self.out.open("ab") as out, (scene.root / "client.err").open("ab") as err:
            self.process = subprocess.Popen(
                (*words, *ARGS[machine.agent], *STREAM),
                cwd=machine.workspace,
                env=machine.env(),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
            )

    @property
    def stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def say(self, text: str) -> None:
        said = {"type": "user", "message": {"role": "user", "content": text}, "parent_tool_use_id": None}
        self.stdin.write(json.dumps({**said, "session_id": ""}).encode() + b"\n")
        self.stdin.flush()


@pytest.mark.parametrize("scene", once(ARGS, "claude"), indirect=True)
def test_a_program_that_streams_its_prompts_goes_on_after_a_crash(scene: Scene) -> None:
    """I3, I8: its next prompt is heard, behind the notice, and it still gets its lines of JSON."""
    machine = scene.machine("vm")
    scene.script(Turn(calls=[machine.rehearsal.shell("echo paid >> side; sleep 600")]))
    client = Client(scene, machine)
    client.say(TASK)
    until(lambda: scene.side() == ["paid"], "it is paid")
    until(lambda: TASK.encode() in scene.conversation(), "it has the task")
    client.process.kill()
    client.stdin.close()
    client.process.wait()
    machine.end()
    seen = len(scene.model.requests)
    scene.script(Turn(text="It was paid once."), Turn(text="Nothing else."))
    again = Client(scene, machine)
    again.say("where are we now")
    until(lambda: b"It was paid once." in again.out.read_bytes(), "the client has the answer")
    again.stdin.close()
    assert again.process.wait(60) == 0
    heard = [part.text for part in scene.model.history(seen) if isinstance(part, HistoryText)]
    told = [n for n, text in enumerate(heard) if "[wal-agent recovery]" in text and "UTC" in text]
    asked = [n for n, text in enumerate(heard) if "where are we now" in text]
    assert len(told) == 1 and asked and asked[-1] >= told[0]
    assert scene.side() == ["paid"] and len(scene.model.requests) == seen + 1
