"""Read scenarios: what an agent is to do in a drill, with which scripts, and which effects may happen only once.

A scenario is one TOML file (docs/DRILL.md). Those of this folder are shipped; a user writes his own.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from wal_agent.errors import UsageError

Kill = Literal["before", "between", "after", "thinking", "recovery", "wrapper", "machine"]
Stop = Literal["sigterm", "background", "esc", "queued"]
"""What ends a call without its being over, or comes while one runs (decision 062)."""
Point = Kill | Stop
POINTS: Final[dict[Point, str]] = {
    "before": "inside the tool, before its effect",
    "between": "after the effect, before the tool returns",
    "after": "just after the tool returned",
    "thinking": "later, while the model thinks",
    "recovery": "after the effect, and once more during the recovery",
    "wrapper": "only the process that was started; the tool runs on",
    "machine": "after the effect; HOME and the folder are lost",
    "sigterm": "after the effect, by SIGTERM as a machine that goes away; then everything",
    "background": "before the effect of a command in the background, of which the agent has the result",
    "esc": "at a terminal: after the effect Esc, and then everything",
    "queued": "at a terminal: after the effect, with a further prompt typed while the tool runs",
}
KILLS: Final[tuple[Point, ...]] = get_args(Kill)
STOPS: Final[tuple[Point, ...]] = get_args(Stop)
assert tuple(POINTS) == KILLS + STOPS
AT_TERMINAL: Final[tuple[Point, ...]] = ("esc", "queued")
SCRIPTED: Final[tuple[Point, ...]] = ("background", *AT_TERMINAL)
"""Points that need a model that does as it is told here, and arguments of the drill's own."""

SHIPPED: Final = Path(__file__).parent / "scenarios"
_KEYS: Final = {"title", "task", "rules", "git", "files", "step"}
_STEP_KEYS: Final = {"run", "effect", "verify", "once", "lines_of"}
MOST = 256 << 10  # bytes of a scenario's file
ASK: Final = "./ask.sh"


class Step(msgspec.Struct, frozen=True):
    """A command of the task. `effect`: its line in the ledger. `verify`: the command that says whether it happened, ""
    where nothing can. `once`: it may not happen twice. `lines_of`: the effect is a line of this file of the agent's
    folder, and counted there; "": it is in the world. `typed`: not the task asks for it, but a later prompt."""

    run: str
    effect: str
    verify: str = ""
    once: bool = True
    lines_of: str = ""
    typed: bool = False


TYPED: Final = Step("./thanks.sh", "thanks", once=False, typed=True)
"""What each world has for a prompt that is typed while another step runs."""


class Scenario(msgspec.Struct, frozen=True):
    name: str
    title: str
    task: str
    steps: tuple[Step, ...]
    rules: str = ""  # for the agent's AGENTS.md and GEMINI.md
    files: dict[str, str] = msgspec.field(default_factory=dict)  # of the agent's folder
    git: bool = False  # the folder is a repository with a remote in the world

    @property
    def targets(self) -> tuple[Step, ...]:
        """The steps at which a kill is aimed: those that may not happen twice."""
        return tuple(step for step in self.steps if step.once)

    @property
    def prompt(self) -> str:
        """What the agent is asked, in one line: some agents' command lines take no other."""
        first = [step for step in self.steps if not step.typed]
        steps = " ".join(f"({n}) `{step.run}`" for n, step in enumerate(first, 1))
        return (
            f"{self.task} Run these commands in this order, each exactly once: {steps} "
            f"Where you cannot find out whether a command had its effect, run `{ASK} QUESTION` and stop there."
        )


def names() -> list[str]:
    """Return the names of the shipped scenarios."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load(wanted: str) -> list[Scenario]:
    """Return the scenario of this name or file; of "all": each shipped one. UsageError: there is none, or it is
    wrong."""
    if wanted == "all":
        return [parse(name, (SHIPPED / f"{name}.toml").read_text("utf-8")) for name in names()]
    path = SHIPPED / f"{wanted}.toml" if wanted in names() else Path(wanted)
    try:
        with path.open("rb") as file:
            data = file.read(MOST + 1)
        if len(data) > MOST:
            raise UsageError(f"{path} has more than {MOST >> 10} kB, too much for a scenario.")
        return [parse(path.stem, data.decode())]
    except OSError as error:
        known = ", ".join(names())
        raise UsageError(
            f"{wanted} is neither a scenario nor a file that can be read ({error.strerror}).",
            f"Scenarios: {known}, all. Your own: docs/DRILL.md",
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8.") from error


def parse(name: str, text: str) -> Scenario:
    """Return the scenario that this TOML describes. UsageError: it is wrong, with the place."""
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"Scenario {name}: {error}.") from error
    _check(name, value, _KEYS, ("title", "task", "step"))
    for key, kind in (("title", str), ("task", str), ("rules", str), ("git", bool), ("files", dict), ("step", list)):
        if not isinstance(value.get(key, kind()), kind):
            raise UsageError(f"Scenario {name}: `{key}` must be a {kind.__name__}.")
    files = value.get("files", {})
    for place, content in files.items():
        parts = Path(place).parts
        if not isinstance(content, str) or not parts or Path(place).is_absolute() or ".." in parts or ".git" in parts:
            raise UsageError(f"Scenario {name}: [files] {place}: a text at a path below the agent's folder is needed.")
    steps = tuple(_step(name, n, step) for n, step in enumerate(value["step"], 1))
    if len({step.effect for step in steps}) < len(steps):
        raise UsageError(f"Scenario {name}: two steps have the same `effect`.")
    if not any(step.once for step in steps):
        raise UsageError(f"Scenario {name}: no step may happen only once, so there is nothing to grade.")
    task = " ".join(value["task"].split())
    return Scenario(name, value["title"], task, steps, value.get("rules", ""), files, value.get("git", False))


def _step(name: str, n: int, value: Any) -> Step:
    where = f"{name}, step {n}"
    if not isinstance(value, dict):
        raise UsageError(f"Scenario {where}: it must be a table ([[step]]).")
    _check(where, value, _STEP_KEYS, ("run", "effect"))
    for key in ("run", "effect", "verify", "lines_of"):
        text = value.get(key, "")
        if not isinstance(text, str) or not text.isprintable():
            raise UsageError(f"Scenario {where}: `{key}` must be one line of text.")
    if not isinstance(value.get("once", True), bool):
        raise UsageError(f"Scenario {where}: `once` must be true or false.")
    return Step(**value)


def _check(where: str, value: dict[str, Any], known: set[str], needed: tuple[str, ...]) -> None:
    if strange := sorted(set(value) - known):
        raise UsageError(f"Scenario {where}: unknown key `{strange[0]}`. Known: {', '.join(sorted(known))}.")
    if missing := [key for key in needed if not value.get(key)]:
        raise UsageError(f"Scenario {where}: `{missing[0]}` is missing.")
