"""Play rounds: start the agent in a scratch world, kill it at the wanted place, start it again, and grade.

Everything of a round is below one scratch folder: HOME, bucket, the agent's folder and the world. The seed chooses each
kill, so that a round can be played again.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from wal_agent.agents.base import Agent, Rehearsal
from wal_agent.drill.grade import Entry, Grade, Seen, grade
from wal_agent.drill.policy import Policy, PolicyModel, misled
from wal_agent.drill.scenario import AT_TERMINAL, KILLS, STOPS, TYPED, Point, Scenario, Step
from wal_agent.drill.terminal import Terminal
from wal_agent.drill.world import World
from wal_agent.paths import PROGRAM, launchers
from wal_agent.rehearsal.demo import end_all

TASK: Final = "{task}"  # in the agent's arguments: the place of the task
SAID: Final = 4000  # characters of what a start printed that a report keeps
_KILLED_IN_SCRIPT: Final[dict[Point, str]] = {
    "before": "before",
    "wrapper": "before",
    "between": "between",
    "recovery": "between",
    "machine": "between",
    "sigterm": "between",
    "background": "before",
    "esc": "between",
    "queued": "between",
}
TAKEN: Final = 60.0  # seconds from a SIGTERM to the kill, if it has not ended by itself
ESCAPES: Final = 20  # presses of Esc, one a second, until the agent has ended its tool: some want it twice


class Subject(Protocol):
    """What is drilled: how the agent is started, and started again."""

    @property
    def name(self) -> str: ...

    def argv(self, start: int, agent: Agent, program: Sequence[str], args: Sequence[str], root: Path) -> Sequence[str]:
        """The command of start number `start` (the first is 0). `program`: the bare agent."""


class WalAgent(msgspec.Struct, frozen=True):
    name: str = "wal-agent"

    def argv(self, start: int, agent: Agent, program: Sequence[str], args: Sequence[str], root: Path) -> Sequence[str]:
        own = [*PROGRAM, "run", agent.name, "--bucket", f"file://{root}/bucket"]
        return [*own, "--job", "drill", "--", *args]


class Bare(msgspec.Struct, frozen=True):
    name: str = "bare"

    def argv(self, start: int, agent: Agent, program: Sequence[str], args: Sequence[str], root: Path) -> Sequence[str]:
        return [*program, *args]


Started = subprocess.Popen[bytes] | Terminal


class Round(msgspec.Struct, frozen=True):
    scenario: Scenario
    target: Step  # at which the kill is aimed
    point: Point
    seed: int


class Setup(msgspec.Struct, frozen=True):
    """`policy`: of the scripted model; None: the user's own model. `env`: the user's. `args`: of the agent, with TASK
    where the task goes; none: those of a headless run that approves every tool. `login`: files of the user's HOME that
    are copied into the scratch HOME. `rules`: files that are copied into the agent's folder. `seconds`: the longest
    that one start may take."""

    agent: Agent
    rehearsal: Rehearsal
    subject: Subject
    env: Mapping[str, str]
    policy: Policy | None = None
    args: tuple[str, ...] = ()
    login: tuple[Path, ...] = ()
    rules: tuple[Path, ...] = ()
    seconds: float = 180.0


class Cost(msgspec.Struct, frozen=True):
    """What the requests of a scripted model show. `per_call`: median seconds from an answer that calls a tool to the
    next request of the same start. `stored`: bytes in the round's bucket at the end. `tools`: calls of the world's
    scripts. `wrong`, `untold`: effects of which the conversation of the last start began with the opposite of what had
    happened, and that had happened without a trace in it."""

    per_call: float | None = None
    stored: int = 0
    tools: int = 0
    wrong: int = 0
    untold: int = 0


class Played(msgspec.Struct, frozen=True):
    """A round with its grade, its ledger and the end of what each start printed."""

    round: Round
    grade: Grade
    ledger: tuple[Entry, ...]
    said: tuple[str, ...] = msgspec.field(default_factory=tuple)
    cost: Cost = Cost()


def plan_rounds(scenarios: Sequence[Scenario], rounds: int, seed: int, stops: Sequence[Point] = STOPS) -> list[Round]:
    """Return so many rounds for each scenario: each kill point once before one comes again, in the seed's order; the
    seven kills before the `stops`, `queued` last."""
    planned = []
    for scenario in scenarios:
        chance, later = (random.Random(f"{seed} {scenario.name}{word}") for word in ("", " stops"))
        points: list[Point] = []
        while len(points) < rounds:
            for group, by in ((KILLS, chance), (stops, later)):
                more = list(group)
                by.shuffle(more)
                points += sorted(more, key=lambda point: point == "queued")
        for n, point in enumerate(points[:rounds]):
            target = chance.choice(scenario.targets)
            task = replace(scenario, steps=(*scenario.steps, TYPED)) if point == "queued" else scenario
            planned.append(Round(task, target, point, seed * 1000 + n))
    return planned


def expected_calls(rounds: Sequence[Round]) -> int:
    """Estimate the requests to the model: each step and an answer, then a look and the rest again."""
    return sum(len(r.scenario.steps) + 1 + (2 if r.point == "recovery" else 1) * 3 for r in rounds)


def play(setup: Setup, rounds: Sequence[Round]) -> Iterator[Played]:
    """Play the rounds, one after the other."""
    for each in rounds:
        # Not our own name: agents name their folders after the workspace.
        root = Path(tempfile.mkdtemp(prefix="drill-")).resolve()
        runtime = Path(tempfile.mkdtemp(prefix="wal-agent-", dir="/tmp")).resolve()
        try:
            with _Stage(setup, each, root, runtime) as stage:
                yield stage.play()
        finally:
            end_all(root)
            for folder in (root, runtime):
                shutil.rmtree(folder, ignore_errors=True)


class _Stage:
    def __init__(self, setup: Setup, wanted: Round, root: Path, runtime: Path) -> None:
        self.setup, self.wanted, self.root, self.runtime = setup, wanted, root, runtime
        self.chance = random.Random(f"{wanted.seed} {wanted.scenario.name} {wanted.point}")
        self.world = World(root, wanted.scenario, setup.rules)
        self.home = root / "home"
        self.home.mkdir()
        self.started: list[float] = []  # times of the starts, since 1970
        self.files: set[str] = set()
        self.open = ExitStack()
        self.model: PolicyModel | None = None
        self.env: dict[str, str] = {}

    def __enter__(self) -> _Stage:
        if self.setup.policy is not None:
            made = PolicyModel(self.setup.rehearsal, self.wanted.scenario, self.setup.policy, self.wanted.seed)
            made.happened = self._happened
            made.start()
            self.open.callback(made.stop)
            self.open.callback(made.release.set)
            self.open.callback(made.over.set)
            self.model = made
        self._machine()
        return self

    def __exit__(self, *_: object) -> None:
        self.open.close()

    # ---- the story

    def play(self) -> Played:
        self._arm()
        run = self._start()
        if self._wait(run, self._at_the_point) and not self._wait_end(run, self._delay()):
            self._stop(run)
            self._kill(run, self.wanted.point)
            if self.model is not None and self.wanted.point == "recovery":
                self.model.over.clear()
                self.model.hold_end = True  # a job that had come to its end would rightly begin anew
            run = self._start()
            if self.wanted.point == "recovery" and not self._wait_end(run, self.chance.uniform(0.2, 1.5)):
                self._kill(run, "recovery")
                run = self._start()
        ended = self._wait_end(run, self.setup.seconds)
        self._end(run)
        ledger = self.world.ledger()
        seen = Seen(
            run.returncode if ended else None,
            self.world.lines(),
            tuple(sorted(self.files - self.world.files())),
            self._back(),
            len(self.model.requests) if self.model else None,
        )
        said = tuple(self._said(n) for n in range(len(self.started)))
        graded = grade(self.wanted.scenario, self.wanted.target.effect, ledger, seen)
        return Played(self.wanted, graded, tuple(ledger), said, self._cost(ledger))

    def _arm(self) -> None:
        if point := _KILLED_IN_SCRIPT.get(self.wanted.point):
            self.world.arm(point, self.wanted.target)
        elif self.model is not None:
            self.model.hold_at = self.wanted.target.effect
        if self.model is not None and self.wanted.point == "background":
            self.model.behind = self.model.hold_at = self.wanted.target.effect

    def _at_the_point(self) -> bool:
        if self.wanted.point in _KILLED_IN_SCRIPT:
            return self.world.reached
        return self.world.ended(self.wanted.target)

    def _delay(self) -> float:
        """Return the seconds from the point to the kill. An agent that ends meanwhile is not killed."""
        if self.wanted.point == "machine":
            return self.chance.uniform(0, 3)  # whether the newest files are saved is a matter of time
        if self.wanted.point == "after":
            return self.chance.uniform(0, 0.25)
        if self.wanted.point in ("thinking", "background"):
            if self.model is not None:
                self.model.holding.wait(30)
            return self.chance.uniform(1.0, 2.0)
        return 0.0

    def _stop(self, run: Started) -> None:
        """What comes before the kill: of a person, or of a machine that goes away."""
        if self.wanted.point == "sigterm":
            os.kill(run.pid, signal.SIGTERM)
            self._wait_end(run, TAKEN)
        if not isinstance(run, Terminal):
            return
        if self.wanted.point == "queued":
            run.type(f"When that is done, also run `{TYPED.run}`, exactly once.")
            time.sleep(1)  # an Enter at once would count as part of a paste
            run.press("Enter")
        for _ in range(ESCAPES if self.wanted.point == "esc" else 0):
            if not self.world.held:
                break
            run.press("Escape")
            self._wait(run, lambda: not self.world.held, 1)
        self._wait_end(run, self.chance.uniform(1.0, 2.0))

    def _kill(self, run: Started, point: Point) -> None:
        self.files = self.world.files()
        self.world.note("kill", point)
        run.kill()
        run.wait()
        if point == "wrapper":
            release = threading.Timer(self.chance.uniform(0.5, 3.0), self.world.disarm)
            release.start()
            self.open.callback(release.join)
        else:
            end_all(self.root)
            self.world.disarm()
        if self.model is not None:
            self.model.hold_at, self.model.hold_end = "", False
            self.model.release.set()
            self.model.over.set()
            self.model.owed += 1
        if point == "machine":
            self.world.lose(self.home)
            self.world.clone()
            self._machine()

    # ---- processes

    def _machine(self) -> None:
        """Prepare HOME, and the environment of what runs in it."""
        env, name = self.setup.env, self.setup.agent.name
        program = f"WAL_AGENT_{name.upper()}"
        if self.model is not None:
            kept = ("PATH", "LANG", "TERM", "PYTHONPATH", "COPILOT_PKG_CACHE_HOME", program)
            base = {k: env[k] for k in kept if k in env}
            needed = self.setup.rehearsal.home(self.home, self.world.work, self.model.url)
        else:
            away = ("XDG_", "WAL_AGENT_")
            base = {k: v for k, v in env.items() if not k.startswith(away) or k == program}
            needed = {**self.setup.rehearsal.trusts}
            user = Path(env.get("HOME", "/"))
            for path in self.setup.login:
                copy = self.home / path.relative_to(user)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy)
        own = {"HOME": str(self.home), "WAL_AGENT_RUNTIME_DIR": str(self.runtime)}
        self.env = {**launchers(env), **base, **needed, **own}

    def _start(self) -> Started:
        prompt = self.wanted.scenario.prompt
        args = [word.replace(TASK, prompt) for word in self.setup.args] or [*self.setup.rehearsal.args(prompt)]
        person = not self.started and self.wanted.point in AT_TERMINAL
        if person:
            args = [*(self.setup.rehearsal.interactive_args(prompt) or args)]
        program = [str(self.setup.agent.locate(self.setup.env).path)]
        start = len(self.started)
        argv = self.setup.subject.argv(start, self.setup.agent, program, args, self.root)
        self.world.note("start", str(start))
        self.started.append(time.time())
        if person:
            return Terminal(argv, self.world.work, self.env, self.root / "tmux", self.root / f"said-{start}")
        with (self.root / f"said-{start}").open("wb") as out:
            return subprocess.Popen(
                argv, cwd=self.world.work, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def _wait(self, run: Started, reached: Callable[[], bool], seconds: float = 0.0) -> bool:
        """Wait until the kill's point is reached; False: the run ended before, or took too long."""
        limit = time.monotonic() + (seconds or self.setup.seconds)
        while time.monotonic() < limit:
            if reached():
                return True
            if run.poll() is not None:
                return reached()
            time.sleep(0.02)
        return False

    def _wait_end(self, run: Started, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            run.wait(seconds)
        return run.poll() is not None

    def _end(self, run: Started) -> None:
        with suppress(ProcessLookupError):
            run.kill()
        run.wait()
        self.open.close()  # the release of a script that is still held
        end_all(self.root)

    # ---- what was seen

    def _back(self) -> float | None:
        first = self._first_request()
        return None if first is None or self.model is None else self.model.times[first] - self.started[-1]

    def _first_request(self) -> int | None:
        """Return the number of the first request behind the last restart."""
        if len(self.started) < 2 or self.model is None:
            return None
        return next((n for n, t in enumerate(self.model.times) if t > self.started[-1]), None)

    def _happened(self) -> set[str]:
        """Return the effects that are in the world now; those in the agent's folder count while the folder is there."""
        local = {step.effect for step in self.wanted.scenario.steps if step.lines_of}
        found = {entry.what for entry in self.world.ledger() if entry.event == "effect"} - local
        return found | set(+self.world.lines())

    def _cost(self, ledger: Sequence[Entry]) -> Cost:
        if self.model is None:
            return Cost()
        times, first = self.model.times, self._first_request()
        pairs = ((a, b) for a, b in itertools.pairwise(times) if not any(a < start < b for start in self.started))
        gaps = [b - a for a, b in pairs]
        heard = [] if first is None else self.model.history(first)
        wrong, untold = (0, 0) if first is None else misled(self.wanted.scenario, heard, self.model.facts[first])
        stored = sum(path.stat().st_size for path in (self.root / "bucket").rglob("*") if path.is_file())
        tools = sum(entry.event in ("begin", "verify", "ask") for entry in ledger)
        return Cost(statistics.median(gaps) if gaps else None, stored, tools, wrong, untold)

    def _said(self, start: int) -> str:
        with suppress(OSError):
            return (self.root / f"said-{start}").read_bytes().decode(errors="replace")[-SAID:]
        return ""
