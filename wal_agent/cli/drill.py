"""`wal-agent drill`: kill the user's own agent in a scratch world, and grade its recovery."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from wal_agent.agents import unknown_agent_error
from wal_agent.answers import answer_json
from wal_agent.cli.options import AsJson, complete_agent
from wal_agent.errors import PersonNeeded, UsageError
from wal_agent.text import answer, lines, plural, say

MAX_ROUNDS = 1000


def drill(
    agent: Annotated[
        str,
        typer.Argument(
            help="The agent to drill (see: wal-agent agents).", metavar="AGENT", autocompletion=complete_agent
        ),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(
            help="After `--`: the agent's own arguments, with {task} in the place of the prompt. Without them: a "
            "headless run that approves every tool.",
            metavar="[-- ARGS]",
        ),
    ] = None,
    scenario: Annotated[
        str, typer.Option("--scenario", help="A shipped scenario, `all`, or your own TOML file.", metavar="NAME|FILE")
    ] = "charge",
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds",
            help="Rounds of each scenario. There are 11 kill points; `queued` is the last.",
            min=1,
            max=MAX_ROUNDS,
        ),
    ] = 10,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed for the choice of kill points; the same seed repeats them.", min=0)
    ] = 1,
    points: Annotated[
        list[str] | None,
        typer.Option("--point", help="Play only the rounds with this kill point (repeatable).", metavar="POINT"),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="own|scripted",
            help="own: the agent's own model; scripted: a script on this machine, no account needed.",
        ),
    ] = "own",
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="well|badly|confusedly|naive|respells|talks|deaf",
            help="Behaviour of the scripted model.",
        ),
    ] = "well",
    bare: Annotated[bool, typer.Option("--bare", help="Run the agent without wal-agent, for comparison.")] = False,
    login: Annotated[
        list[Path] | None,
        typer.Option("--login", help="Copy this file of your HOME into the scratch HOME (repeatable).", metavar="FILE"),
    ] = None,
    rules: Annotated[
        list[Path] | None,
        typer.Option("--rules", help="Copy this file into the agent's folder (repeatable): GEMINI.md, wal-agent.toml."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Timeout of one start of the agent in seconds.", min=10)
    ] = 300,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: AsJson = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a report to this file.")] = None,
) -> None:
    """Kill and recover your own agent in a scratch folder, and count what it repeated or lost.

    The agent works in a folder, HOME and bucket of the drill's own, on scripted tools with a ledger. Exits 0 only if
    nothing was repeated or lost, else 1. What it will do is printed first; a model of your own costs requests, so
    that needs --yes or an answer.
    """
    from wal_agent.agents import AGENTS, rehearsal_of
    from wal_agent.drill import report
    from wal_agent.drill.play import TASK, Bare, Setup, WalAgent, expected_calls, plan_rounds, play
    from wal_agent.drill.policy import POLICIES
    from wal_agent.drill.scenario import AT_TERMINAL, POINTS, SCRIPTED, STOPS, load
    from wal_agent.drill.terminal import lacks_terminal

    if agent not in AGENTS:
        raise unknown_agent_error(agent)
    rehearsal = rehearsal_of(AGENTS[agent])
    if rehearsal is None:
        raise UsageError(
            f"There is no drill of {agent}: it stands for any command.", "For example: wal-agent drill gemini"
        )
    if model not in ("own", "scripted") or policy not in POLICIES:
        wrong, known = (model, "own, scripted") if model not in ("own", "scripted") else (policy, ", ".join(POLICIES))
        raise UsageError(f"There is no {wrong}.", f"Possible: {known}")
    if strange := next((point for point in points or () if point not in POINTS), None):
        raise UsageError(f"There is no kill point {strange}.", f"Possible: {', '.join(POINTS)}")
    if args and not any(TASK in word for word in args):
        raise UsageError(
            f"The arguments have no {TASK}, so the agent would get no task.",
            f"For example: wal-agent drill {agent} -- {shlex.join(rehearsal.args(TASK))}",
        )
    scenarios = load(scenario)
    scripted = next((name for name in POLICIES if name == policy), None) if model == "scripted" else None
    setup = Setup(
        AGENTS[agent],
        rehearsal,
        Bare() if bare else WalAgent(),
        os.environ,
        scripted,
        tuple(args or ()),
        tuple(_in_home(path) for path in login or ()),
        tuple(_a_file(path) for path in rules or ()),
        timeout,
    )
    AGENTS[agent].locate(os.environ)
    left_out = {*SCRIPTED} if scripted is None or args else {*AT_TERMINAL} if lacks_terminal() else set()
    if impossible := next((point for point in points or () if point in left_out), None):
        needed = "tmux on PATH" if scripted and not args else "--model scripted, without arguments of your own"
        raise UsageError(f"The kill point {impossible} needs {needed}.")
    stops = [point for point in STOPS if point not in left_out]
    planned = plan_rounds(scenarios, rounds, seed, stops)
    chosen = [each for each in planned if each.point in (points or POINTS)]
    if not chosen:
        raise UsageError(f"No round of {rounds} has this kill point.", "11 rounds have each point once: --rounds 11")
    shown = f"scripted ({policy})" if scripted else "own"
    lines(
        [
            f"Drill of {agent} {'without' if bare else 'under'} wal-agent: {plural(len(chosen), 'round')} of "
            f"{', '.join(each.name for each in scenarios)}, seed {seed}.",
            "  where  a scratch folder with its own HOME, bucket and files; removed at the end. Yours are not used.",
            "  how    each round starts the agent, kills it once or twice with SIGKILL, and starts it again",
            f"  model  {shown}, about {expected_calls(chosen)} requests"
            + ("; they cost nothing" if scripted else " to your account, and more if the model takes detours"),
        ]
    )
    if scripted is None and not yes:
        if not sys.stdin.isatty():
            raise PersonNeeded("Nothing was run: the requests cost money.", "Start it with --yes.")
        typer.confirm("Start it?", default=False, abort=True, err=True)
    done = []
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that what runs is ended, and the scratch folder removed
        signal.signal(number, _end)
    for n, played in enumerate(play(setup, chosen), 1):
        done.append(played)
        how = f"killed at {played.round.point}" if played.grade.killed else "ended before the kill"
        where = f"{played.round.scenario.name}, {how}"
        result = "nothing repeated or lost" if played.grade.passed else "REPEATED OR LOST"
        say(f"round {n} of {len(chosen)}: {where}: {result}")
    about = (agent, setup.subject.name, shown, seed)
    if html is not None:
        try:
            html.write_text(report.page(done, *about), "utf-8")
        except OSError as error:
            say(f"the report was not written: {html}: {error.strerror}")
        else:
            say(f"report: {html}")
    if json:
        answer_json(report.facts(done, *about))
    else:
        answer([*report.table(done), "", report.verdict(done)])
    raise typer.Exit(0 if report.passed(done) else 1)


def _end(number: int, frame: FrameType | None) -> None:
    raise typer.Exit(128 + number)


def _a_file(path: Path) -> Path:
    if not path.is_file():
        raise UsageError(f"{path} is no file.")
    return path.absolute()


def _in_home(path: Path) -> Path:
    home = Path(os.environ.get("HOME", "/")).absolute()
    found = _a_file(path if path.is_absolute() else home / path)
    if not found.is_relative_to(home) or ".." in found.parts:
        raise UsageError(f"{path} is not below your HOME ({home}).")
    return found
