"""Prove what the description of an agent says (`wal-agent agents --check`), on the real program against a scripted
model on loopback: what `doctor` proves of its hooks, and a machine that dies in a tool and is recovered with an empty
HOME.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping

from wal_agent.agents.family import Declared
from wal_agent.paths import PROGRAM
from wal_agent.rehearsal.demo import CHARGE, LOOK, Stage, run_demo
from wal_agent.rehearsal.model import Called, HistoryText, Model, Returned, Turn
from wal_agent.rehearsal.selftest import SECONDS, Proof, prove

SAVED = 30.0  # seconds for what a tool did, and its conversation, to be in the log
TASK = "Note the work, then charge the customer."


def check(agent: Declared, env: Mapping[str, str]) -> Iterator[Proof]:
    """Yield a proof of each claim; `env` is the user's."""
    yield from prove(agent, env)
    found: list[Proof] = []

    def play(stage: Stage, model: Model) -> None:
        found.extend(_play(agent, stage, model))

    if run_demo(agent, env, lambda line: None, TASK, play) and not found:
        found.append(Proof("a machine that dies in a tool is recovered", False, "the story did not come to its end"))
    yield from found


def _play(agent: Declared, stage: Stage, model: Model) -> list[Proof]:
    said = stage.root / "said"

    def start(home: str) -> subprocess.Popen[str]:
        words = ["run", agent.name, "--bucket", f"file://{stage.bucket}", "--job", stage.job, "--"]
        env = {**stage.machine(stage.home(home), model), "WAL_AGENT_UNVERIFIED": "allow"}
        with said.open("wb") as out:
            return subprocess.Popen(
                [*PROGRAM, *words, *stage.rehearsal.args(TASK)],
                cwd=stage.work,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                text=True,
            )

    def why() -> str:
        return os.linesep.join(said.read_text(errors="replace").strip().splitlines()[-3:])

    note, charge = stage.rehearsal.write(stage.work / "note.txt", "charge once\n"), stage.rehearsal.shell(CHARGE)
    model.turns[:] = [Turn(text="I note it.", calls=[note]), Turn(text="I charge.", calls=[charge])]
    run, home = start("home-1"), stage.root / "home-1"
    if not _happens(lambda: stage.ledger() or run.poll() is not None, SECONDS) or not stage.ledger():
        return [Proof("two calls in a row run", False, why())]
    saved = _happens(lambda: stage.charged(home, model, "note.txt"), SAVED)
    state, session = stage.state(), stage.session(home, model)
    stage.die(run, home)
    stage.lose(home)
    ends, read = (
        [c.status for c in agent.seen_calls(session)],
        {(c.tool, c.id) for c in agent.requested_calls(session).values()},
    )
    asked = {(each.intent.tool, each.intent.agent_call) for each in state.open}
    open = [each.intent.call for each in state.open]
    proofs = [
        _proof("each call is logged before it runs, and its end behind it", open == [2], f"open are calls {open}"),
        _proof("the session's main file is found and saved", saved, f"{len(session)} bytes were found"),
        _proof("the calls in it are the hooks' calls, with their ids", asked <= read, f"{[*asked]} of {[*read]}"),
        _proof("a call's end is read from it", ends == ["done"], f"{ends}"),
    ]
    if not all(proof.ok for proof in proofs):
        return proofs
    model.requests.clear()
    model.turns[:] = [Turn(text="I look first.", calls=[stage.rehearsal.shell(LOOK)]), Turn(text="Charged once.")]
    code = start("home-2").wait(SECONDS)
    heard = model.history(0) if model.requests else []
    texts = [part.text for part in heard if isinstance(part, HistoryText) and part.role == "user"]
    calls = [part for part in heard if isinstance(part, Called)]
    told = {part.id: part.text for part in heard if isinstance(part, Returned)}
    results = [told.get(part.id, "") for part in calls]
    resumed = _proof("a resume goes on in the restored session", any(TASK in text for text in texts[:-1]), why())
    if not resumed.ok:
        return [*proofs, resumed]
    like = agent.about.tools_of
    left = [each.intent.call for each in stage.state().open]
    return [
        *proofs,
        resumed,
        _proof("every call is in it once", [note[0], charge[0]] == [c.tool for c in calls], f"{calls}"),
        _proof("the call that was cut off has an unknown outcome", "outcome unknown" in "".join(results[1:]), why()),
        _proof("the model reads the recovery's notice", any("[wal-agent recovery]" in text for text in texts), why()),
        _proof("the turn's end is reported", code == 0, why()),
        *([_proof(f"its shell is that of {like}, so a look at an effect counts", not left, why())] if like else []),
    ]


def _proof(what: str, held: bool, why: str) -> Proof:
    return Proof(what, held, "" if held else why)


def _happens(what: Callable[[], object], within: float) -> bool:
    end = time.monotonic() + within
    while not (found := what()) and time.monotonic() < end:
        time.sleep(0.05)
    return bool(found)
