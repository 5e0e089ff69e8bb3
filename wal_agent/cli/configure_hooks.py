"""`wal-agent configure-hooks`: which tools call a hook, and hooks in an agent's own settings.

The person's wal-agent.toml is edited in place (tomlkit): comments and order stay.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import tomlkit
import typer
from tomlkit.items import InlineTable

from wal_agent.agents import unknown_agent_error
from wal_agent.answers import JsonAnswer, answer_json
from wal_agent.cli.options import AsJson, complete_agent
from wal_agent.errors import ConfigError, UsageError
from wal_agent.text import answer, say

if TYPE_CHECKING:
    from wal_agent.agents.base import HooksToInstall


MADE = (
    "# Made by `wal-agent configure-hooks`; --reset takes it out again.\n"  # alone at the head of a file that is ours
)
MARK = "# wal-agent configure-hooks"
T = TypeVar("T")


def with_skip(text: str | None, agent: str, tools: Sequence[str]) -> str:
    """The text with just these tools in the list; `text` None is a file that does not exist. ValueError when it is no
    TOML, or when the list cannot be put in."""
    if not tools:
        return _checked(_set(text or "", agent, ()), agent, ())
    old = MADE if text is None else text
    if _ours(agent).search(old):
        old = _cut(old, agent)
    if "skip" in _table(old, agent):
        return _checked(_set(old, agent, tools), agent, tools)
    newline = "\r\n" if "\r\n" in old else "\n"
    start = newline if old else ""
    block = f"{start}[hooks.{agent}] {MARK}{newline}skip = {tomlkit.item(list(tools)).as_string()}{newline}"
    try:
        return _checked(old + block, agent, tools)
    except ValueError:  # the table is there already, or in another form
        return _checked(_set(old, agent, tools), agent, tools)


def without_skip(text: str, agent: str) -> str | None:
    """The text without the list; None when the file is ours and holds nothing else."""
    left = _cut(text, agent) if _ours(agent).search(text) else text
    if "skip" in _table(left, agent):
        document = tomlkit.parse(left)
        hooks: Any = document["hooks"]
        del hooks[agent]["skip"]
        left = tomlkit.dumps(document)
    if "skip" in _table(left, agent):
        raise ValueError("the list could not be taken out")
    return None if left == MADE else left


def _set(text: str, agent: str, tools: Sequence[str]) -> str:
    """Through tomlkit: what stands in the list and stays keeps its place and its comment."""
    document = tomlkit.parse(text)
    hooks = _sub(document, "hooks")
    table = _sub(hooks, agent)
    if not isinstance(table.get("skip"), list):
        table["skip"] = list(tools)
    for tool in [t for t in table["skip"] if t not in tools]:
        table["skip"].remove(tool)
    for tool in tools:
        if tool not in table["skip"]:
            table["skip"].append(tool)
    return tomlkit.dumps(document)


def _sub(parent: Any, key: str) -> Any:
    """The table under `key`, made in the parent's own form where there is none."""
    if key not in parent:
        parent[key] = tomlkit.inline_table() if isinstance(parent, InlineTable) else tomlkit.table()
    if not isinstance(parent[key], dict):
        raise ValueError(f"{key} is not a table")
    return parent[key]


def _checked(text: str, agent: str, tools: Sequence[str]) -> str:
    if sorted(set(_table(text, agent).get("skip", []))) != sorted(set(tools)):
        raise ValueError(f"hooks.{agent} stands there in a form that cannot be edited")
    return text


def _table(text: str, agent: str) -> dict[str, Any]:
    try:
        hooks = tomllib.loads(text).get("hooks", {})
        table = hooks.get(agent, {}) if isinstance(hooks, dict) else {}
    except RecursionError:
        raise ValueError("it is too deep") from None
    return table if isinstance(table, dict) else {}


def _ours(agent: str) -> re.Pattern[str]:
    return re.compile(rf"(?:\r?\n|\A)\[hooks\.{re.escape(agent)}\] {MARK}\r?\nskip = \[[^\r\n]*\]\r?\n")


def _cut(text: str, agent: str) -> str:
    found = _ours(agent).search(text)
    return text[: found.start()] + text[found.end() :] if found else text


class Row(msgspec.Struct, frozen=True):
    """What `--show` says of one tool."""

    tool: str
    before_hook: bool
    why: str


class ConfigureHooks(JsonAnswer, frozen=True):
    """`wal-agent configure-hooks`. `file`: the project's, with the list of skipped tools; `settings`: the agent's own,
    None where no hooks can be installed; `installed`: ours are in it."""

    agent: str
    file: str
    skip: tuple[str, ...]
    tools: tuple[Row, ...]
    settings: str | None
    installed: bool


def configure_hooks(
    agent: Annotated[
        str, typer.Option("--agent", help="The agent whose hooks.", metavar="NAME", autocompletion=complete_agent)
    ] = "gemini",
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", help="Run no hook before these tools (only tools that read).", metavar="T,..."),
    ] = None,
    unskip: Annotated[
        list[str] | None, typer.Option("--unskip", help="Run a hook before these tools again.", metavar="T,...")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Remove the list of skipped tools from wal-agent.toml.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Show which tools run a hook first, and why (the default).")
    ] = False,
    install: Annotated[
        bool,
        typer.Option(
            "--install", help="Install hooks in the agent's own settings, for runs that something else starts."
        ),
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Remove them; the rest of the file is unchanged.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Choose which tools run a hook first, or install hooks in the agent's own settings.

    `wal-agent run` brings its own hooks and needs none of this. The list of skipped tools is in this folder's
    wal-agent.toml; it saves the few milliseconds of a hook for tools that only read.
    """
    from wal_agent.agents import AGENTS
    from wal_agent.supervise.ancestry import require_person

    if agent not in AGENTS:
        raise unknown_agent_error(agent)
    wanted = [bool(skip or unskip), reset, install, uninstall]
    if sum(wanted) > 1:
        raise UsageError("One thing at a time: --skip with --unskip, --reset, --install, or --uninstall.")
    if any(wanted):
        require_person(f"wal-agent configure-hooks --agent {agent}")
    workspace = Path.cwd().resolve()
    if skip or unskip:
        _change(workspace, agent, _names(skip), _names(unskip))
    elif reset:
        _reset(workspace, agent)
    elif install:
        _install(agent)
    elif uninstall:
        _uninstall(agent)
    if show or json or not any(wanted):
        _show(workspace, agent, json)


# ---- the list -----------------------------------------------------------------------------------------------------


def _change(workspace: Path, agent: str, skip: Sequence[str], unskip: Sequence[str]) -> None:
    from wal_agent.config import FILE
    from wal_agent.supervise.settings import refuse_skip

    if both := sorted(set(skip) & set(unskip)):
        raise UsageError(f"--skip and --unskip both name {', '.join(both)}.")
    for tool in skip:
        if why := refuse_skip(tool, agent):
            raise UsageError(f"--skip {tool}: {why}")
    path, text, old = _list(workspace, agent)
    for tool in unskip:
        if tool not in old:
            raise UsageError(f"--unskip {tool}: it is not skipped in {path}.")
    tools = [*(t for t in old if t not in unskip), *(t for t in skip if t not in old)]
    if not tools:
        _reset(workspace, agent)
        return
    if tools != list(old):
        _write(path, text, _edited(path, lambda: with_skip(text, agent, tools)))
    say(f"{', '.join(tools)}: no before-hook, from the next start on ({FILE}).")


def _reset(workspace: Path, agent: str) -> None:
    from wal_agent.config import FILE

    path, text, _ = _list(workspace, agent)
    left = None if text is None else _edited(path, lambda: without_skip(text or "", agent))
    if left != text:
        _write(path, text, left)
    say(f"every tool has its before-hook, from the next start on ({FILE}).")


def _list(workspace: Path, agent: str) -> tuple[Path, str | None, tuple[str, ...]]:
    """The workspace's wal-agent.toml: path, text, skipped tools. A project may have made it a link; we do not write
    through that."""
    import tomllib

    from wal_agent.config import FILE, read_file
    from wal_agent.supervise.settings import skipped

    path = workspace / FILE
    if path.is_symlink():
        raise ConfigError(f"{path} is a link, which is not written through.", "Edit what it points to by hand.")
    text = read_file(path)
    document = _edited(path, lambda: tomllib.loads(text or ""))
    return path, text, skipped(document, agent, path)


def _edited(path: Path, edit: Callable[[], T]) -> T:

    try:
        return edit()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be edited: {error}.", "Nothing was changed.") from None


def _write(path: Path, old: str | None, new: str | None) -> None:
    from wal_agent.safefs import replace_file

    if new is None:
        path.unlink(missing_ok=True)
    else:
        replace_file(path, new.encode(), None if old is None else old.encode())


def _names(given: Sequence[str] | None) -> list[str]:
    return list(dict.fromkeys(name.strip() for part in given or () for name in part.split(",") if name.strip()))


# ---- the agent's own settings -------------------------------------------------------------------------------------


def _install(agent: str) -> None:
    from wal_agent.agents import installed_hooks
    from wal_agent.paths import state_dir

    path = installed_hooks.install_hooks(_standing(agent), state_dir(os.environ))
    say(f"hooks put into {path}. They do nothing outside a run; take them out again with --uninstall.")


def _uninstall(agent: str) -> None:
    from wal_agent.agents import installed_hooks
    from wal_agent.paths import state_dir

    wanted = _standing(agent)
    path = installed_hooks.uninstall_hooks(wanted, state_dir(os.environ))
    if path is None:
        say(f"no wal-agent hooks are installed in {installed_hooks.settings_path(wanted)}.")
    else:
        say(f"hooks taken out of {path}.")


def _standing(agent: str) -> HooksToInstall:
    from wal_agent.agents import AGENTS

    found = AGENTS[agent].capabilities
    if found.hooks_to_install is not None:
        return found.hooks_to_install(os.environ)
    able = ", ".join(sorted(name for name, other in AGENTS.items() if other.capabilities.hooks_to_install))
    if found.hookless is not None:
        raise UsageError(f"{agent} has no hooks.", f"Hooks can be installed for: {able}.")
    raise UsageError(
        f"{agent} is given its hooks at each start of a run, on its command line or as a plugin; there is nothing to "
        "install.",
        f"Hooks can be installed for: {able}.",
    )


# ---- show ---------------------------------------------------------------------------------------------------------


def rows(agent: str, skip: Sequence[str]) -> list[Row]:
    """Every tool that wal-agent knows, the skipped ones first."""
    from wal_agent.agents import tools_of
    from wal_agent.calls.rules.table import load_rules
    from wal_agent.supervise.settings import refuse_skip

    tools = load_rules().of(tools_of(agent)).tools
    found = [Row(tool, False, f"{tools[tool].why}, and is skipped" if tool in tools else "is skipped") for tool in skip]
    for tool in sorted(set(tools) - set(skip)):
        can = refuse_skip(tool, agent) is None
        found.append(Row(tool, True, tools[tool].why + ("; could be skipped" if can else "")))
    return found


def _show(workspace: Path, agent: str, json: bool) -> None:

    from wal_agent.agents import AGENTS, installed_hooks

    path, _, skip = _list(workspace, agent)
    table = rows(agent, skip)
    hooks_to_install = AGENTS[agent].capabilities.hooks_to_install
    wanted = hooks_to_install(os.environ) if hooks_to_install is not None else None
    settings = None if wanted is None else installed_hooks.settings_path(wanted)
    is_installed = wanted is not None and installed_hooks.is_installed(wanted)
    if json:
        where = None if settings is None else str(settings)
        answer_json(ConfigureHooks(agent, str(path), tuple(skip), tuple(table), where, is_installed))
        return
    width = max(len(row.tool) for row in table)
    answer([f"{row.tool:{width}}  {'before-hook' if row.before_hook else 'skipped':11}  {row.why}" for row in table])
    answer([f"{'any other tool':{width}}  before-hook  is not known to wal-agent"])
    if settings is not None:
        answer(["", f"{'hooks' if is_installed else 'no hooks'} of ours are in {settings}"])
