"""Two real agents that talk to each other by messages while they are killed.

    python -m tests.faults.talk [--rounds 100] [--seed 1] [--carrier bucket|nats] [--agents claude gemini]

Each agent acts on each message of the other once: it appends the message's id to a file, which cannot be taken back. In
each round two more messages go each way, and at a random moment a run, an agent, both of them or the server is killed;
what ended is started again by the same command. At the end the files hold all ids once and in order, every
conversation has each message once, and the log knows each as seen.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.conftest import installed
from tests.e2e.scene import Machine, Run, Scene, opened
from tests.servers.nats import NatsServer
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.cli.log import read_entries
from wal_agent.records import MessageGiven
from wal_agent.rehearsal.model import Call, Called, Dialect, HistoryText, Json, Model, Part, Returned, Turn
from wal_agent.wal.keys import Keys

EACH: Final = 2  # messages each way in one round
PATIENCE: Final = 180.0  # seconds for one round, on a busy machine
PATH: Final = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
MARK = re.compile(r"\[wal-agent message ([\w.-]+)\] from")
PROMPT: Final = "talk, part"
MAX_CALLS: Final = 12  # of a turn that has nothing to do; Gemini asks itself after 30 whether it is in a loop
NOTICE: Final = "[wal-agent recovery]"
VICTIMS: Final = ("run a", "run b", "agent a", "agent b", "both runs", "both agents")


@dataclass(frozen=True)
class Talk:
    """What the agent of job `me` does, decided by its conversation alone. `limit`: messages that it may send in all;
    `ahead`: how many more than it has got; `shell` makes the call; `send` is the command in front of a message's id."""

    me: str
    other: str
    ahead: int
    shell: Callable[[str], Call]
    send: str

    def next(self, history: Sequence[Part], limit: int, over: bool) -> Turn:
        """Return the answer to `history`. As a careful agent would: behind a recovery it looks before it acts again."""
        heard = self.heard(history)
        for id in heard:
            if not self._returned(history, f"ok-{id}", f"seen-{id}=1"):
                return Turn(calls=[self.shell(self._look(id) if self._in_doubt(history, id) else self._act(id))])
        for n in range(1, min(limit, len(heard) + self.ahead) + 1):
            id = f"{self.me}-{n}"
            if not self._returned(history, f"ok-{id}"):
                return Turn(calls=[self.shell(f"{self.send} {id} 'note {n}' && printf 'ok%s\\n' -{id}")])
        if over:
            return Turn("All is said.")
        if sum(isinstance(part, Called) for part in _newest_turn(history)) >= MAX_CALLS:
            return Turn("Nothing is to be done now.")
        return Turn(calls=[self.shell(f"sleep 0.3; : {len(history)}")])  # Gemini takes equal ones for a loop

    def heard(self, history: Sequence[Part]) -> list[str]:
        """The ids of the other's messages, in the order in which they came into the conversation."""
        found = [id for part in history if not isinstance(part, Called) for id in MARK.findall(part.text)]
        return list(dict.fromkeys(id for id in found if id.startswith(f"{self.other}-")))

    def _act(self, id: str) -> str:
        return f"echo {id} >> did && printf 'ok%s\\n' -{id}"

    def _look(self, id: str) -> str:
        words = f"printf 'seen%s=%s\\n' -{id}"  # without $(), which Gemini refuses
        return f"grep -qx {id} did && {words} 1 || {words} 0"

    def _in_doubt(self, history: Sequence[Part], id: str) -> bool:
        """It may have been done already: tried, or there was a crash since the message came; and not looked since."""
        doubt = looked = -1
        came = False
        for n, part in enumerate(history):
            if isinstance(part, Called):
                doubt = n if f"echo {id} >>" in json.dumps(part.input) else doubt
                continue
            came = came or f"[wal-agent message {id}]" in part.text
            doubt = n if came and NOTICE in part.text else doubt
            looked = n if isinstance(part, Returned) and f"seen-{id}=0" in part.text else looked
        return doubt > looked

    def _returned(self, history: Sequence[Part], *words: str) -> bool:
        texts = [part.text for part in history if isinstance(part, Returned)]
        return any(re.search(rf"{re.escape(word)}(?!\d)", text) for word in words for text in texts)


def _newest_turn(history: Sequence[Part]) -> Sequence[Part]:
    began = [n for n, part in enumerate(history) if isinstance(part, HistoryText) and PROMPT in part.text]
    return history[began[-1] :] if began else history


class Talker(Model):
    """The model of one side."""

    def __init__(self, dialect: Dialect, talk: Talk) -> None:
        super().__init__(dialect)
        self.talk, self.limit, self.over = talk, 0, False

    def take(self, body: Json) -> Turn:
        history = self.dialect.history(body)
        with self._lock:
            self.requests[:] = [body]
        return self.talk.next(history, self.limit, self.over)

    def told(self) -> Counter[str]:
        """How often each of the other's messages is in the newest conversation. Claude Code shows what a Stop hook said
        again behind a resume, as the words of an error."""
        texts = [part.text for part in self.history() if not isinstance(part, Called)]
        texts = [text for text in texts if not text.startswith("Stop hook blocking error from command")]
        return Counter(id for text in texts for id in MARK.findall(text))


@dataclass
class Side:
    """One job with its agent, started again whenever it has ended."""

    job: str
    machine: Machine
    model: Talker
    options: tuple[str, ...]
    run: Run | None = None
    starts: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    ended: int | None = None  # exit code of the newest run

    def keep_running(self) -> None:
        if self.run is not None and (code := self.run.process.poll()) is not None:
            self.codes[code] += 1
            self.run, self.ended = None, code
        if self.run is None and not (self.model.over and self.ended == 0):
            self.start()

    def start(self) -> None:
        self.starts += 1
        args = self.machine.rehearsal.args(f"{PROMPT} {self.starts}")
        self.run = self.machine.run(
            *args, options=("--wait", "--continue", *self.options), WAL_AGENT_JOB=self.job, PATH=PATH
        )

    def kill_run(self) -> None:
        if self.run is not None:
            self.run.process.kill()

    def kill_agent(self) -> None:
        for file in self.machine.runtime.glob("*/agent.pid"):
            with suppress(OSError, ValueError):
                os.kill(int(file.read_text()), 9)

    def did(self) -> list[str]:
        file = self.machine.workspace / "did"
        return file.read_text().split() if file.exists() else []

    def words(self) -> str:
        return "\n".join(run.stderr()[-2000:] for run in self.machine.runs[-2:])


@dataclass
class Report:
    carrier: str
    rounds: int
    messages: int
    kills: Counter[str]
    seconds: float
    latencies: list[float]  # seconds from send to the record that the agent is given it
    codes: Counter[int]
    faults: list[str]

    def lines(self) -> list[str]:
        times = sorted(self.latencies)
        at = {name: times[min(len(times) - 1, int(len(times) * part))] for name, part in (("p50", 0.5), ("p95", 0.95))}
        return [
            f"{self.carrier}: {self.rounds} rounds in {self.seconds:.0f} s, {self.messages} messages, kills: "
            + ", ".join(f"{n} {what}" for what, n in sorted(self.kills.items())),
            f"  send to given: p50 {at['p50']:.2f} s, p95 {at['p95']:.2f} s, most {times[-1]:.2f} s, "
            f"mean {statistics.mean(times):.2f} s",
            f"  ends of runs by exit code: {dict(sorted(self.codes.items()))}",
            *(f"  FAULT: {fault}" for fault in self.faults),
        ]


def talk(root: Path, carrier: str, rounds: int, seed: int, agents: Sequence[str], kill: bool = True) -> Report:
    """Play `rounds` and return what was found. `kill`: else nothing is killed, and latencies are those of peace."""
    rng, began = random.Random(f"talk {seed}"), time.monotonic()
    server = NatsServer(root / "nats").start() if carrier == "nats" else None
    options = ("--autosave", "0.5", "--restart-limit", "0", *(("--messages", server.url) if server else ()))
    sides = [
        _side(root, me, other, agent, options, server) for me, other, agent in zip("ab", "ba", agents, strict=True)
    ]
    kills: Counter[str] = Counter()
    try:
        for number in range(1, rounds + 1):
            for side in sides:
                side.model.limit = number * EACH
            _round(sides, server, number * EACH, rng if kill else None, kills)
        for side in sides:
            side.model.over = True
        _until(sides, lambda: all(side.run is None for side in sides), "the agents end")
        return _report(sides, carrier, rounds, kills, time.monotonic() - began)
    finally:
        for side in sides:
            side.machine.end()
            side.model.stop()
        if server is not None:
            server.kill()


def _side(root: Path, me: str, other: str, agent: str, options: tuple[str, ...], server: NatsServer | None) -> Side:
    rehearsal = rehearsal_of(AGENTS[agent])
    assert rehearsal is not None
    (root / me).mkdir()
    send = f"wal-agent send --job {other} --id"
    model = Talker(rehearsal.dialect, Talk(me, other, EACH if me == "a" else 0, rehearsal.shell, send))
    model.start()
    scene = Scene(root / me, installed(agent), model, agent, url=f"file://{root / 'bucket'}")
    reach = {"WAL_AGENT_MESSAGES": server.url} if server else {}
    return Side(me, scene.machine(f"vm-{me}", reach=reach), model, options)


def _round(
    sides: Sequence[Side], server: NatsServer | None, goal: int, rng: random.Random | None, kills: Counter[str]
) -> None:
    """Until each side has acted on `goal` messages, with one kill at a moment of `rng`."""
    if rng is not None:
        moment = time.monotonic() + rng.uniform(0.0, 3.0)
        victim = rng.choice((*VICTIMS, "server") if server else VICTIMS)
        _until(sides, lambda: time.monotonic() >= moment, "the moment of the kill")
        kills[victim] += 1
        for side in sides:
            if victim in (f"run {side.job}", "both runs"):
                side.kill_run()
            elif victim in (f"agent {side.job}", "both agents"):
                side.kill_agent()
        if victim == "server" and server is not None:
            server.kill()
            back = time.monotonic() + rng.uniform(0.0, 2.0)
            _until(sides, lambda: time.monotonic() >= back, "the server's return")
            server.start()
    _until(sides, lambda: all(len(side.did()) >= goal for side in sides), f"{goal} messages each way")


def _until(sides: Sequence[Side], what: Callable[[], bool], why: str) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        for side in sides:
            side.keep_running()
        if what():
            return
        if time.monotonic() > end:
            state = "\n".join(f"{side.job}: acted on {side.did()[-3:]}\n{side.words()}" for side in sides)
            raise AssertionError(f"waited {PATIENCE:.0f} s in vain for: {why}\n{state}")
        time.sleep(0.02)


def _report(sides: Sequence[Side], carrier: str, rounds: int, kills: Counter[str], seconds: float) -> Report:
    faults: list[str] = []
    latencies: list[float] = []
    goal = rounds * EACH
    for side in sides:
        other = side.model.talk.other
        wanted = [f"{other}-{n}" for n in range(1, goal + 1)]
        if (did := side.did()) != wanted:
            counts = Counter(did)
            faults.append(
                f"{side.job} acted on {len(did)} of {goal}: lost {[w for w in wanted if not counts[w]]}, "
                f"twice {[w for w in wanted if counts[w] > 1]}, in order: {did == sorted(did, key=_number)}"
            )
        told = side.model.told()
        if odd := {id: told[id] for id in wanted if told[id] != 1}:
            faults.append(f"{side.job} has in its conversation not once, but so often: {odd}")
        done = side.machine.cli("inbox", "--json", WAL_AGENT_JOB=side.job)
        rows = {row["id"]: row["state"] for row in json.loads(done.stdout)["messages"]}
        kept = wanted[-250:]  # the state keeps 300
        if unseen := {id: rows.get(id) for id in kept if rows.get(id) != "seen"}:
            faults.append(f"{side.job}'s log has not seen {unseen}")
        first: dict[str, float] = {}
        with opened(side.machine.bucket) as bucket:
            for entry in read_entries(bucket, Keys(side.job)):
                if isinstance(entry.record, MessageGiven):
                    first.setdefault(entry.record.id, entry.record.time - entry.record.sent)
        latencies += first.values()
    codes = sum((side.codes for side in sides), Counter[int]())
    return Report(carrier, rounds, 2 * goal, kills, seconds, latencies, codes, faults)


def _number(id: str) -> int:
    return int(id.rpartition("-")[2])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.talk", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--carrier", choices=["bucket", "nats"], action="append")
    parser.add_argument("--agents", nargs=2, default=["claude", "gemini"])
    parser.add_argument("--keep", help="Leave everything below this folder.", metavar="DIR")
    parser.add_argument("--peace", action="store_true", help="Kill nothing.")
    given = parser.parse_args()
    bad = False
    for carrier in given.carrier or ["bucket", "nats"]:
        with nullcontext(given.keep) if given.keep else tempfile.TemporaryDirectory(prefix="talk-") as folder:
            root = Path(folder) / carrier
            root.mkdir(parents=True)
            found = talk(root, carrier, given.rounds, given.seed, given.agents, not given.peace)
        print("\n".join(found.lines()), flush=True)
        bad = bad or bool(found.faults)
    sys.exit(bad)


if __name__ == "__main__":
    main()
