"""A call as steps: what the kinds of evidence are asked about."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from wal_agent.evidence.files import read_changes
from wal_agent.evidence.model import Step, resolve_path
from wal_agent.shell import syntax
from wal_agent.shell.classify import FOLDERS
from wal_agent.shell.rules import load_rules

_MOST_STEPS = 16
_NOWHERE = Path("/")  # for the first `cd` of a command whose folder is not known
_ELSEWHERE = frozenset(FOLDERS)
_OUTPUTS = frozenset({">", ">>", ">|", "&>", "&>>", "<>", ">&"})
# These change what later words of the same shell mean, or whether they are reached.
_BUILTINS = re.compile(
    "alias|bg|break|builtin|command|continue|declare|disown|dirs|enable|eval|exec|exit|export|fg|getopts|hash|jobs|let|"
    "local|logout|mapfile|popd|pushd|read|readarray|readonly|return|select|set|shift|shopt|source|[.]|suspend|trap|"
    "typeset|ulimit|umask|unalias|unset|wait"
)


def split_call(
    tool: str,
    fields: Mapping[str, object],
    workspace: Path,
    moved: tuple[Path, Path] | None = None,
    cwd: Path | None = None,
) -> tuple[Step, ...] | None:
    """What a call does, step by step; None where that cannot be read from its words. `cwd`: where the agent said that
    it runs, absolute, on this machine.

    A `cd` is no step: it moves what follows, and its folder must be there."""
    step = Step(tool, (), (), cwd or workspace, moved)
    shell = load_rules().shells.get(tool)
    if shell is None:
        changes = read_changes(tool, fields, sure=cwd is not None)
        return None if changes is None else tuple(replace(step, file=c) for c in changes)
    text = fields.get(shell.field)
    at = next((v for name in shell.folder if (v := fields.get(name))), ".")
    strange = shell.strange({k: v for k, v in fields.items() if v != ""}) or fields.keys() & _ELSEWHERE - {
        *shell.folder
    }
    if not isinstance(text, str) or not isinstance(at, str) or strange or "CDPATH" in os.environ:
        return None
    commands = syntax.literal_commands(text)
    here = None if at.startswith("~") else resolve_path(step, at)
    if not commands or len(commands) > _MOST_STEPS or here is None:
        return None
    step = replace(step, cwd=Path(here))
    if cwd is None and shell.wanders:
        first = [w.text or "" for w in commands[0].words]
        if len(first) != 2 or first[0] != "cd" or not first[1].startswith("/"):
            return None
        step = replace(step, cwd=_NOWHERE)
    steps: list[Step] = []
    for one in commands:
        words = tuple(w.text for w in one.words if w.text is not None)
        if (
            len(words) != len(one.words)
            or one.assigns
            or any(r.to is not None and r.to.text is None for r in one.redirects)
        ):
            return None
        name = words[0] if words else ""
        if name == "cd":
            folder = resolve_path(step, words[1]) if len(words) == 2 and words[1][:1] not in ("-", "~") else None
            if folder is None or one.redirects or not Path(folder).is_dir():
                return None
            step = replace(step, cwd=Path(folder))
            continue
        if _BUILTINS.fullmatch(name):
            return None
        steps.append(replace(step, words=words, redirects=one.redirects, input=one.input))
    return tuple(steps)


def is_shell_tool(tool: str) -> bool:
    return tool in load_rules().shells


def output_redirects(step: Step) -> tuple[syntax.Redirect, ...]:
    """The redirections of a step that may change a file."""
    return tuple(r for r in step.redirects if r.op in _OUTPUTS and not _is_descriptor(r))


def _is_descriptor(redirect: syntax.Redirect) -> bool:
    text = redirect.to.text if redirect.to is not None else None
    return text == "/dev/null" or (
        redirect.op == ">&" and text is not None and re.fullmatch(r"\d+|-", text) is not None
    )
