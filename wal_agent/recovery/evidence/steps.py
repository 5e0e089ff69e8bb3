"""A call as steps: what the kinds of evidence are asked about."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from wal_agent.recovery import bash
from wal_agent.recovery.evidence.files import FILE_TOOLS
from wal_agent.recovery.evidence.paths import place
from wal_agent.recovery.step import Step

SHELL = "run_shell_command"
_MOST_STEPS = 16
_SILENT = frozenset({"command", "description", "dir_path", "directory"})  # others may change what a call does
_OUTPUTS = frozenset({">", ">>", ">|", "&>", "&>>", "<>", ">&"})
# These change what later words of the same shell mean, or whether they are reached.
_BUILTINS = re.compile(
    "alias|bg|break|builtin|command|continue|declare|disown|dirs|enable|eval|exec|exit|export|fg|getopts|hash|jobs|let|"
    "local|logout|mapfile|popd|pushd|read|readarray|readonly|return|select|set|shift|shopt|source|[.]|suspend|trap|"
    "typeset|ulimit|umask|unalias|unset|wait"
)


def steps_of(
    tool: str, fields: Mapping[str, object], cwd: Path, moved: tuple[Path, Path] | None = None
) -> tuple[Step, ...] | None:
    """What a call does, step by step; None where that cannot be read from its words. `cwd`: the workspace.

    A `cd` is no step: it moves what follows, and its folder must be there."""
    if tool in FILE_TOOLS:
        return (Step(tool, fields, (), (), cwd, moved),)
    if tool != SHELL:
        return None
    text, at = fields.get("command"), fields.get("dir_path") or fields.get("directory") or "."
    strange = {k for k, v in fields.items() if v not in (None, False, "")} - _SILENT
    if not isinstance(text, str) or not isinstance(at, str) or strange or "CDPATH" in os.environ:
        return None
    commands = bash.literal_commands(text)
    here = place(Step(tool, fields, (), (), cwd, moved), at)
    if not commands or len(commands) > _MOST_STEPS or here is None:
        return None
    step = Step(tool, {}, (), (), Path(here), moved)
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
            folder = place(step, words[1]) if len(words) == 2 and words[1][:1] not in ("-", "~") else None
            if folder is None or one.redirects or not Path(folder).is_dir():
                return None
            step = replace(step, cwd=Path(folder))
            continue
        if _BUILTINS.fullmatch(name):
            return None
        steps.append(replace(step, words=words, redirects=one.redirects, input=one.input))
    return tuple(steps)


def outputs(step: Step) -> tuple[bash.Redirect, ...]:
    """The redirections of a step that may change a file."""
    return tuple(r for r in step.redirects if r.op in _OUTPUTS and not _is_descriptor(r))


def _is_descriptor(redirect: bash.Redirect) -> bool:
    text = redirect.to.text if redirect.to is not None else None
    return text == "/dev/null" or (
        redirect.op == ">&" and text is not None and re.fullmatch(r"\d+|-", text) is not None
    )
