"""`wal-agent agents`, `demo` and `doctor`: what works here, and the proof. Also makes docs/AGENTS.md: the text is
page.md, the facts are the agents' modules and traits.toml.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import msgspec
import typer
from msgspec.structs import asdict, replace

from wal_agent.agents import unknown_agent_error
from wal_agent.agents.base import Agent, Cli, Hookless
from wal_agent.answers import JsonAnswer, answer_json
from wal_agent.cli.display import HEADED, answer_lines
from wal_agent.cli.options import AsJson, BucketUrl, check_typed_job, complete_agent
from wal_agent.clock import SystemClock
from wal_agent.errors import ConfigError, Denied, UsageError, WalAgentError
from wal_agent.msgspec_compat import of_values
from wal_agent.redact import redact
from wal_agent.text import answer, say

if TYPE_CHECKING:
    from wal_agent.rehearsal.selftest import Proof


TEMPLATE = Path(__file__).parents[1] / "agents" / "page.md"
COLUMNS = ("hooks", "intent", "fail_closed", "reconcile", "resume", "interactive", "subagents")
ON_PAGE = ("hooks",)  # the others are for the terminal
HEADS = {"fail_closed": "fail-closed"}


class Traits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a user gets with an agent, as traits.toml explains it."""

    start: str
    hooks: str
    intent: str
    fail_closed: str
    reconcile: str
    resume: str
    interactive: str
    subagents: str
    limits: tuple[str, ...] = ()


@cache
def traits() -> dict[str, Traits]:
    return of_values(dict[str, Traits])(tomllib.loads(TEMPLATE.with_name("traits.toml").read_text()))


def traits_of(agent: Agent) -> Traits:
    """Return those of traits.toml, or of an agent that a person has added, in the words that hold for each of them."""
    known = traits().get(agent.name)
    if known is None:
        from wal_agent.agents.family import Declared

        known = Traits(**cast(Declared, agent).traits())
    return known


class ShownAgent(msgspec.Struct, frozen=True, kw_only=True):
    """What a user gets with an agent, in words. `tested`: the newest version, `also`: others."""

    name: str
    tested: str
    also: tuple[str, ...]
    hooks: str
    intent: str
    fail_closed: str
    reconcile: str
    resume: str
    interactive: str
    subagents: str
    limits: tuple[str, ...]


class Agents(JsonAnswer, frozen=True):
    """`wal-agent agents`."""

    agents: tuple[ShownAgent, ...]


def facts(agents: Sequence[Agent]) -> Agents:
    found = []
    for agent in agents:
        told = {name: value for name, value in asdict(traits_of(agent)).items() if name != "start"}
        found.append(ShownAgent(name=agent.name, tested=agent.tested, also=tuple(agent.also), **told))
    return Agents(tuple(found))


def versions(agent: Agent) -> str:
    return ", ".join(filter(None, (agent.tested, *agent.also)))


def agents_page(agents: Sequence[Agent]) -> str:
    page = TEMPLATE.read_text()
    starts = "".join(f"    wal-agent run {agent.name} -- {traits_of(agent).start}\n" for agent in agents)
    for mark, text in {"@STARTS@": starts, "@TABLE@": _table(agents), "@LIMITS@": _limits(agents)}.items():
        page = page.replace(f"{mark}\n", text)
    return page


def _table(agents: Sequence[Agent]) -> str:
    rows = [["agent", *ON_PAGE, "tested"]]
    rows.append(["---"] * len(rows[0]))
    for agent in agents:
        cells = (getattr(traits_of(agent), name) for name in ON_PAGE)
        rows.append([agent.name, *cells, versions(agent) or "any command"])
    return "".join(f"| {' | '.join(map(_cell, row))} |\n" for row in rows)


def _limits(agents: Sequence[Agent]) -> str:
    """What several agents have in common stands first, once."""
    limits = {agent.name: traits_of(agent).limits or ("Nothing that is known.",) for agent in agents}
    having = {text: [name for name in limits if text in limits[name]] for texts in limits.values() for text in texts}
    shared = [f"{_line(text)} ({', '.join(names)})" for text, names in having.items() if len(names) > 1]
    blocks = {"several agents": shared} if shared else {}
    blocks |= {name: [_line(text) for text in texts if len(having[text]) == 1] for name, texts in limits.items()}
    return "\n".join(f"**{name}**\n\n" + "".join(f"- {line}\n" for line in lines) for name, lines in blocks.items())


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def _line(text: str) -> str:
    return " ".join(text.split())


def rows(agents: Sequence[Agent]) -> list[str]:
    """Return the same for a terminal."""
    out: list[str] = []
    for agent in agents:
        known = traits_of(agent)
        out.append(f"{agent.name}  ({f'tested with {versions(agent)}' if agent.tested else 'any command'})")
        out += [f"  {HEADS.get(name, name):<12} {getattr(known, name)}" for name in COLUMNS]
        out += [f"  {'not held' if n == 0 else '':<12} {text}" for n, text in enumerate(known.limits)]
    return out


def agents(
    check: Annotated[
        Path | None,
        typer.Option(
            "--check",
            metavar="FILE",
            help="Prove that FILE describes an agent: on the real program, against a scripted model on this machine. "
            "Exit code 78: something does not hold.",
        ),
    ] = None,
    json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/AGENTS.md on stdout.")] = False,
) -> None:
    """List the supported agents, their tested versions, and what wal-agent can and cannot do with each."""
    from wal_agent.agents import AGENTS, NAMES, faults

    if check is not None:
        _report(_check(check), json)
    for fault in faults():
        say(fault)
    known = [AGENTS[name] for name in (NAMES if markdown else AGENTS)]
    if json:
        answer_json(facts(known))
    elif markdown:
        sys.stdout.write(agents_page(known))
    else:
        answer_lines(rows(known), HEADED)


def demo(
    agent: Annotated[
        str,
        typer.Option(
            "--agent", help="The agent (see: wal-agent agents).", metavar="NAME", autocompletion=complete_agent
        ),
    ] = "gemini",
    story: Annotated[
        str, typer.Option("--story", help="crash, or task: an investigation of which only the result stays.")
    ] = "crash",
) -> None:
    """Play a demo: a real CLI loses its machine three times, the last time with the folder, and recovers.

    Needs the agent's program on PATH (or in WAL_AGENT_<NAME>) and git; no key, no network. Exits 1 if anything did not
    hold.
    """
    from wal_agent.agents import AGENTS
    from wal_agent.rehearsal import demo_task
    from wal_agent.rehearsal.demo import run_demo

    def show(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if agent not in AGENTS:
        raise unknown_agent_error(agent)
    if story not in ("crash", "task"):
        raise UsageError(f"There is no story {story[:40]}.", "Those: crash, task.")
    AGENTS[agent].locate(os.environ)
    if story == "task":
        raise typer.Exit(run_demo(AGENTS[agent], os.environ, show, demo_task.TASK, demo_task.play))
    raise typer.Exit(run_demo(AGENTS[agent], os.environ, show))


def doctor(
    agent: Annotated[
        str | None,
        typer.Argument(
            help="The agent to test (see: wal-agent agents); without it only the bucket is tested.",
            metavar="[AGENT]",
            autocompletion=complete_agent,
        ),
    ] = None,
    bucket: BucketUrl = None,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            help="Forget that this machine has used the bucket (with --job: this job), because it was deleted or "
            "replaced on purpose. The next run begins anew there.",
        ),
    ] = False,
    job: Annotated[
        str | None, typer.Option("--job", help="For --forget: the job.", metavar="NAME", callback=check_typed_job)
    ] = None,
    json: AsJson = False,
) -> None:
    """Prove that wal-agent works here: the bucket and, if an agent is named, its version and its hooks.

    Of the bucket: permissions, conditions, how long a put takes, clocks. Of the hooks: an allow passes and a deny
    blocks, on the real program against a scripted model on this machine. Exit code 77: the bucket gives no permission,
    and nothing else is wrong; 78: something else does not hold.
    """

    if forget:
        _forget(agent or "gemini", bucket, job)
        raise typer.Exit
    if job is not None:
        raise UsageError("--job goes with --forget.")
    _report(_examine(agent, bucket), json)


def _report(examined: Iterator[Proof], json: bool) -> NoReturn:
    from wal_agent.rehearsal.selftest import DeniedProof, Doctor, NotShown

    proofs: list[Proof] = []
    for proof in examined:
        proofs.append(replace(proof, what=redact(proof.what), detail=redact(proof.detail)))
        if not json:
            word = "--  " if isinstance(proof, NotShown) else "ok  " if proof.ok else "FAIL"
            answer([f"{word}  {proof.what}{': ' + proof.detail if proof.detail else ''}"])
    if json:
        answer_json(Doctor(all(proof.ok for proof in proofs), tuple(proofs)))
    failed = [proof for proof in proofs if not proof.ok]
    denied = bool(failed) and all(isinstance(proof, DeniedProof) for proof in failed)
    raise typer.Exit(0 if not failed else Denied.exit_code if denied else ConfigError.exit_code)


def _check(path: Path) -> Iterator[Proof]:
    from wal_agent.agents.added import of_file
    from wal_agent.rehearsal.check import check
    from wal_agent.rehearsal.selftest import Proof

    found = of_file(path.absolute())
    if found.agent is None:
        raise found.fault or ConfigError(f"{path} describes no agent.")
    cli = found.agent.locate(os.environ)
    yield Proof(f"{found.name} {cli.version} ({version_word(found.agent, cli)})", True, str(cli.path))
    yield from check(found.agent, os.environ)


def _forget(name: str, url: str | None, job: str | None) -> None:
    """Of the bucket that a run here would use, nothing is read: it may be away."""
    from wal_agent.bucket import open_bucket
    from wal_agent.bucket.folder import forget_bucket
    from wal_agent.cli.job import NAMES, say_bucket, settings_for
    from wal_agent.supervise.ancestry import require_person
    from wal_agent.supervise.identity import noted_job

    require_person("wal-agent doctor --forget")
    settings = settings_for(name, Path.cwd().resolve(), {"bucket": url, "job": job}, NAMES)
    say_bucket(settings)
    bucket = open_bucket(settings.bucket).url
    own = job if job is None else noted_job(os.environ, bucket, settings.job)
    what = f"bucket {bucket}" if own is None else f"job {own} in {bucket}"
    try:
        known = forget_bucket(bucket, own, os.environ)
    except OSError as error:
        raise ConfigError(f"What this machine knows of {what} cannot be removed: {error.strerror}.") from error
    say(f"forgot {what}; the next run begins anew there." if known else f"this machine knows nothing of {what}.")


def _examine(name: str | None, url: str | None) -> Iterator[Proof]:
    """One proof after the other, quick ones first."""
    from wal_agent import __version__
    from wal_agent.agents import AGENTS
    from wal_agent.rehearsal.selftest import Proof, prove

    if name is not None and name not in AGENTS:
        raise unknown_agent_error(name)
    yield Proof(f"wal-agent {__version__}, Python {sys.version.split()[0]}, {sys.platform}", True)
    if name is None:
        yield _hook_client()
        yield from _bucket("gemini", url)
        return
    try:
        cli = AGENTS[name].locate(os.environ)
    except WalAgentError as error:
        yield Proof(f"{name} is installed", False, str(error))
        yield from _bucket(name, url)
        return
    yield from _agent(AGENTS[name], cli)
    yield from _bucket(name, url)
    yield from prove(AGENTS[name], os.environ)


def _agent(agent: Agent, cli: Cli) -> Iterator[Proof]:
    from wal_agent.rehearsal.selftest import Proof

    name, workspace = agent.name, Path.cwd().resolve()
    if agent.capabilities.hookless:
        yield from _hookless(agent.capabilities.hookless, workspace)
        return
    yield _hook_client()
    yield Proof(f"{name} {cli.version} ({version_word(agent, cli)})", True, str(cli.path))
    off = agent.hooks_off_reason((), workspace, os.environ)
    yield Proof(f"{name}'s hooks are on in {workspace}", off is None, off or "")


def version_word(agent: Agent, cli: Cli) -> str:
    return "a tested version" if cli.version in (agent.tested, *agent.also) else f"tested with {agent.tested}"


def _hook_client() -> Proof:
    from wal_agent.agents.hook_line import native_client
    from wal_agent.rehearsal.selftest import Proof

    slow = "Python (no C compiler was there at installation; each hook takes some 10 ms more)"
    return Proof(f"hook client: {'native' if native_client() else slow}", True)


def _hookless(hookless: Hookless, workspace: Path) -> Iterator[Proof]:
    from wal_agent.rehearsal.selftest import Proof

    try:
        said = hookless.start_lines(workspace, os.environ)
    except WalAgentError as error:
        yield Proof("its settings can be read", False, str(error))
        return
    yield from (Proof(line, True) for line in said)


def _bucket(name: str, url: str | None) -> Iterator[Proof]:
    """The bucket, where the job of this folder would be."""
    from wal_agent.bucket import open_bucket
    from wal_agent.bucket.check import examine
    from wal_agent.cli.job import NAMES, say_bucket, settings_for
    from wal_agent.rehearsal.selftest import DeniedProof, Proof

    try:
        settings = settings_for(name, Path.cwd().resolve(), {"bucket": url}, NAMES)
        say_bucket(settings)
        bucket = open_bucket(settings.bucket)
    except WalAgentError as error:
        yield Proof("the bucket can be used", False, str(error))
        return
    variable = {"s3": "WAL_AGENT_S3", "gs": "WAL_AGENT_GS"}.get(bucket.url.partition("://")[0], "")
    asked = f", with {variable}: {os.environ[variable]}" if os.environ.get(variable) else ""
    yield Proof(f"bucket {bucket.url}{asked}", True)
    for finding in examine(bucket, f"{settings.job}/probe", SystemClock()):
        kind = DeniedProof if finding.denied is not None and finding.denied.exit_code == Denied.exit_code else Proof
        yield kind(f"  {finding.check}", finding.ok, finding.detail)
