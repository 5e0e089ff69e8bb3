"""I6: the screen of each agent is the same with and without wal-agent, while the model thinks, in a tool, and after."""

from __future__ import annotations

import difflib
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.scene import Scene, until
from tests.e2e.terminal import Terminal
from tests.tiers import once
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.rehearsal.model import Model, Turn

HOOKED = [name for name, agent in AGENTS.items() if (r := rehearsal_of(agent)) and r.interactive_args("x") is not None]

# What changes from one second to the next: spinners, words beside them, times.
MOVES = re.compile(
    r"esc to (?:cancel|interrupt)|esc interrupt|Working\.\.\.|^ *[·✢✳✶✻✽*+] \S+…|\w+ed for <?\d|Elapsed \d|Took \d"
)
SPINNERS = re.compile(r"[\u2800-\u28ff⊶⊷✓○●◎◉■⬝]|(?<=│ )o(?=  )")
SAVED = re.compile(r"^(?:wal-agent: )?job job, saved to .*$|^wal-agent: .*$", re.MULTILINE)
# Lines that are on one of the two screens only, and why.
KNOWN = {
    "codex": r"for agents · \? for shortcuts",  # without wal-agent, it also counts warnings of its daemon
    "copilot": r"No copilot-instructions\.md found",  # it has one: the standing text
    "kilo": r"Generation speed|Cache rate",  # with a fraction or without, as the moment has it
    # pi lists what `-e` names, and warns about tmux at any moment
    "pi": r"\[Extensions\]|^ *pi\.ts|tmux extended-keys",
    "qwen": r"Read context files",  # with the standing text's
}


class Side:
    """An agent in a terminal, on a machine and with a model of its own. The folders' names are of one length."""

    def __init__(self, root: Path, program: Path, agent: str, bare: bool) -> None:
        self.root, self.agent = root, agent
        self.root.mkdir()
        rehearsal = rehearsal_of(AGENTS[agent])
        assert rehearsal is not None
        self.model = Model(rehearsal.dialect).start()
        self.scene = Scene(root, program, self.model, agent)
        self.go, self.started = root / "go", root / "started"
        tool = rehearsal.shell(f"touch {self.started}; until [ -e {self.go} ]; do sleep 0.1; done")
        self.holds = [threading.Event(), threading.Event()]
        self.scene.script(
            Turn(text="I look.", calls=[tool], hold=self.holds[0]), Turn(text="All is done.", hold=self.holds[1])
        )
        args = rehearsal.interactive_args("please work")
        assert args is not None
        self.terminal = Terminal(self.scene.machine("vm-1"), args, bare=bare)
        self.seen: list[str] = []

    def screen(self) -> str:
        """The lines without what moves, is different by nature, or is empty."""
        text = SAVED.sub("", self.terminal.screen())
        self.seen.append(text)
        text = SPINNERS.sub("*", re.sub(rf"\b{self.root.name}/", "SIDE/", text))
        lines = (re.sub(r"\d+", "0", line).strip() for line in text.splitlines())
        unwanted = re.compile("|".join(filter(None, (MOVES.pattern, KNOWN.get(self.agent, "")))))
        return "\n".join(line for line in lines if line and not unwanted.search(line))

    def asked(self, times: int) -> None:
        try:
            until(lambda: len(self.model.requests) >= times, f"the model is asked {times} times")
        except AssertionError as error:
            raise AssertionError(f"{self.root.name}: {error}\n{self.terminal.screen()}") from None

    def close(self) -> None:
        for hold in self.holds:
            hold.set()
        self.terminal.close()
        self.scene.close()
        self.model.stop()


@pytest.fixture
def folder() -> Iterator[Path]:
    """One with a short path, which no screen cuts."""
    made = Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("agent", once(HOOKED, "codex"))
def test_the_screens_are_the_same(agent: str, folder: Path, agent_cli: Callable[[str], Path]) -> None:
    """The transient lines of a hook would be gone before the end of a moment, so no screen on the way may have them."""
    sides: list[Side] = []
    try:
        bare_side = Side(folder / "ab", agent_cli(agent), agent, bare=True)
        sides.append(bare_side)
        ours = Side(folder / "cd", agent_cli(agent), agent, bare=False)
        sides.append(ours)

        def same(moment: str) -> None:
            screens: tuple[str, str] = ("", "")

            def equal() -> bool:
                nonlocal screens
                time.sleep(0.2)  # the terminals need the processors more than this poll does
                screens = bare_side.screen(), ours.screen()
                return screens[0] == screens[1]

            try:
                until(equal, f"the screens are the same {moment}", 15)
            except AssertionError:
                bare, with_us = (text.splitlines() for text in screens)
                lines = difflib.unified_diff(bare, with_us, "bare", "ours", lineterm="")
                raise AssertionError(f"{moment}:\n" + "\n".join(lines)) from None

        for side in sides:
            side.asked(1)
        same("while the model thinks")
        for side in sides:
            side.holds[0].set()
        for side in sides:
            until(side.started.exists, "the tool runs")
        same("in a tool")
        for side in sides:
            side.go.touch()
            side.asked(2)
        same("while the model thinks again")
        for side in sides:
            side.holds[1].set()
        for side in sides:
            side.terminal.shows("All is done")
        same("after the turn")
        shown = re.compile(r"^(?!.*Read context files).*(?:Executing Hook|wal-agent-\w+)", re.MULTILINE)
        assert not [found[0] for text in ours.seen if (found := shown.search(text))]
    finally:
        for side in sides:
            side.close()
