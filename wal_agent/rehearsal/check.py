"""Prove what the description of an agent says (`wal-agent agents --check`), on the real program against a scripted
model on loopback: what `doctor` proves of its hooks, and a machine that dies in a tool and is recovered with an empty
HOME.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from wal_agent.agents.family import Declared
from wal_agent.agents.places import PLACES
from wal_agent.agents.session_files import logged_value, plain_text
from wal_agent.bucket import open_bucket
from wal_agent.paths import PROGRAM
from wal_agent.records import End, Intent, Payload, Record
from wal_agent.rehearsal.demo import CHARGE, LOOK, Stage, run_demo
from wal_agent.rehearsal.model import Called, HistoryText, Model, Returned, Turn
from wal_agent.rehearsal.selftest import SECONDS, Proof, not_shown, prove
from wal_agent.rehearsal.selftest import Stage as Arm
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import iter_segments, replay

SAVED = 30.0  # seconds for what a tool did, and its conversation, to be in the log
TASK = "Note the work, then charge the customer."
FAIL = "printf 'no. %d\\n' $((40 + 2)); exit 3"
PRINTED = "no. 42"  # by it: the text of the command is not that of the result
CHARGED = "charged 49.90"
SLACK = 60.0  # seconds between a record's time and the clock here
ENDED_AS_REFUSED = "a refused call's record is read as refused"
FAILED_HOOK = "a tool that fails is read as failed from its hook"
FIRST = "the session told of its end before the hook did"
FAILED_RECORD = "a tool that fails is read as failed from the session"
NO_FAILED = "result of [session] names no `failed`"


def check(agent: Declared, env: Mapping[str, str]) -> Iterator[Proof]:
    """Yield a proof of each claim; `env` is the user's."""
    words = agent.rehearsal.args(TASK)
    yield _proof("its arguments hold the prompt", agent.prompt_from_args(words) == TASK, f"none was found in {words}")
    yield from prove(agent, env, lambda arm: _refused(agent, arm))
    found: list[Proof] = []

    def play(stage: Stage, model: Model) -> None:
        found.extend(_play(agent, stage, model))

    if run_demo(agent, env, lambda line: None, TASK, play) and not found:
        found.append(Proof("a machine that dies in a tool is recovered", False, "the story did not come to its end"))
    yield from found


def _refused(agent: Declared, arm: Arm) -> Proof:
    """Read what the session says of the call that was denied."""
    if not any(saying.how == "refused" for saying in agent.about.says):
        return not_shown(ENDED_AS_REFUSED, 'no [[says]] has how = "refused"')
    if not agent.about.session.result.failed:
        return not_shown(ENDED_AS_REFUSED, NO_FAILED)
    home, work = arm.root / "home", arm.root / "work"
    bucket = open_bucket(f"file://{arm.root}/bucket")
    try:
        session = replay(bucket, Keys("doctor")).state.session
    finally:
        bucket.close()
    files = agent.session_files(session, work, {**arm.needed, "HOME": str(home)})
    found = [call.status for call in agent.seen_calls(files[0].path.read_bytes() if files else b"")]
    return _proof(ENDED_AS_REFUSED, found == ["refused"], f"it is read as {', '.join(found) or 'nothing'} ([[says]])")


class Calls:
    """The calls of a log, by number, and how each ended."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.intents, self._ends = dict[int, Intent](), dict[int, End]()
        for each in records:
            if isinstance(each, Intent):
                self.intents[each.call] = each
            elif isinstance(each, End):
                self._ends[each.call] = each

    def how(self, call: int) -> str:
        return self._ends[call].how if call in self._ends else "open"

    def is_hooks(self, call: int) -> bool:
        """Return whether a hook told of its end, or should have."""
        return call not in self._ends or self._ends[call].by == "hook"

    def result(self, call: int) -> str:
        """Return what the log has of the call's result."""
        return plain_text(_value(self._ends[call].result)) if call in self._ends else ""


def _logged(stage: Stage) -> Calls:
    bucket = open_bucket(f"file://{stage.bucket}")
    try:
        return Calls(each for _, segment in iter_segments(bucket, Keys(stage.job)) for each in segment.records)
    finally:
        bucket.close()


def _value(payload: Payload | None) -> object:
    return logged_value(payload.data) if payload is not None and payload.data is not None else None


def _play(agent: Declared, stage: Stage, model: Model) -> list[Proof]:
    said, began = stage.root / "said", time.time()

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

    shell = stage.rehearsal.shell
    made = [stage.rehearsal.write(stage.work / "note.txt", "charge once\n"), shell(FAIL), shell(CHARGE)]
    words = ("I note it.", "I look at what there is.", "I charge.")
    model.turns[:] = [Turn(text=text, calls=[call]) for text, call in zip(words, made, strict=True)]
    run, home = start("home-1"), stage.root / "home-1"
    if not _happens(lambda: stage.ledger() or run.poll() is not None, SECONDS) or not stage.ledger():
        return [Proof("three calls in a row run", False, why())]
    saved = _happens(lambda: stage.charged(home, model, "note.txt"), SAVED)
    state, session = stage.state(), stage.session(home, model)
    stage.die(run, home)
    stage.lose(home)
    open = [each.intent.call for each in state.open]
    proofs = [
        _proof("each call is logged before it runs, and its end behind it", open == [3], f"open are calls {open}"),
        _proof("the session's main file is found and saved", saved and bool(session), f"{len(session)} bytes of it"),
        *tell_of_calls(agent, session, _logged(stage), began),
    ]
    if not all(proof.ok for proof in proofs):
        return proofs
    model.requests.clear()
    model.turns[:] = [Turn(text="I look first.", calls=[shell(LOOK)]), Turn(text="Charged once.")]
    code = start("home-2").wait(SECONDS)
    heard = model.history(0) if model.requests else []
    texts = [part.text for part in heard if isinstance(part, HistoryText) and part.role == "user"]
    calls = [part for part in heard if isinstance(part, Called)]
    told = {part.id: part.text for part in heard if isinstance(part, Returned)}
    results = [told.get(part.id, "") for part in calls]
    resumed = _proof("a resume goes on in the restored session", any(TASK in text for text in texts[:-1]), why())
    if not resumed.ok:
        return [*proofs, resumed]
    like = agent.about.tools_of or (agent.name if agent.name in PLACES else "")
    left = [each.intent.call for each in stage.state().open]
    return [
        *proofs,
        resumed,
        _proof("every call is in it once, with its input", made == [(c.tool, c.input) for c in calls], f"{calls}"),
        _proof("a call's result is in it", PRINTED in "".join(results[1:2]), f"without {PRINTED!r}: {results[1:2]}"),
        _proof("the call that was cut off has an unknown outcome", "outcome unknown" in "".join(results[2:]), why()),
        _proof("the model reads the recovery's notice", any("[wal-agent recovery]" in text for text in texts), why()),
        _proof("the turn's end is reported", code == 0, why()),
        _printed(_logged(stage), 4, "a tool", CHARGED),
        _proof(f"its shell is that of {like}, so a look at an effect counts", not left, why())
        if like
        else not_shown("a look at an effect counts", "no tools_of says what its tools do"),
    ]


def tell_of_calls(agent: Declared, session: bytes, logged: Calls, began: float) -> Iterator[Proof]:
    """Prove what hooks and session report of three calls: one is done, one has failed, one still runs."""
    asked = [(each.tool, each.agent_call, _value(each.input)) for each in logged.intents.values()]
    read = [(c.tool, c.id, logged_value(c.input)) for c in agent.requested_calls(session).values()]
    same = len(asked) == len(read) == 3 and all(each in read for each in asked)
    yield _proof("the calls in it are the hooks' calls, with ids and inputs", same, f"{asked} of {read}")
    ends = [call.status for call in agent.seen_calls(session)]
    tells = bool(agent.about.session.result.failed)
    yield _proof("a call's end is read from it", ends[:1] == ["done"] and len(ends) == 2, f"{ends}")
    if tells:
        yield _proof(FAILED_RECORD, ends[1:] == ["failed"], f"{ends[1:]}")
    else:
        yield not_shown(FAILED_RECORD, NO_FAILED)
    hows = [logged.how(call) for call in (1, 2)]
    if not all(map(logged.is_hooks, (1, 2))):
        yield not_shown(FAILED_HOOK, FIRST)
    elif agent.names_failed_end:
        yield _proof(FAILED_HOOK, hows == ["done", "failed"], f"{hows}")
    else:
        yield not_shown(FAILED_HOOK, "no event that means tool_ended names `failed`")
    yield _printed(logged, 2, "a tool that failed", PRINTED)
    if agent.about.session.time:
        times, now = agent.times(session), time.time()
        off = [(at, seconds) for at, seconds in times if not began - SLACK < seconds < now + SLACK]
        why = "".join(
            f"{at!r} is read as {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(s))} UTC"
            if s
            else f"{at!r} at `{agent.about.session.time}` is not a time"
            for at, s in off[:1]
        )
        yield _proof("the times of its calls are those of the clock", bool(times) and not off, why or "there are none")


def _printed(logged: Calls, call: int, who: str, text: str) -> Proof:
    """Prove that the log has what that call's tool printed."""
    what, found = f"a hook tells what {who} printed (`result`)", logged.result(call)
    if not logged.is_hooks(call):
        return not_shown(what, FIRST)
    return _proof(what, text in found, f"without {text!r}: {found[:200]!r}")


def _proof(what: str, held: bool, why: str) -> Proof:
    return Proof(what, held, "" if held else why)


def _happens(what: Callable[[], object], within: float) -> bool:
    end = time.monotonic() + within
    while not (found := what()) and time.monotonic() < end:
        time.sleep(0.05)
    return bool(found)
