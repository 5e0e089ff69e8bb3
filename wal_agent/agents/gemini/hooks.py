"""Gemini's hooks: the payloads, the answers, and the extension that brings them into one run.

Gemini gives a tool call no id: the same call twice at once cannot be told apart. Subagents' inner calls arrive under
the parent's session id, between the start and the end of its `invoke_agent`.

The hooks of a run are an extension (agents/hook_line.py): only an extension's hooks also fire in a folder that is not
trusted. It is in the run's own folder. `hooks/gemini.cjs`, which node loads first in this run's Gemini, adds it to the
extensions that Gemini finds, so that another Gemini neither loads nor shows it, and keeps it out of the status line.

On macOS the extension is in the user's `~/.gemini/extensions`, since Gemini starts its Seatbelt sandbox with other
NODE_OPTIONS, and every Gemini loads it. So the first line of a hook's shell command asks whether this Gemini is this
run's, and exits at once if not (I7). The marker's name begins with GEMINI_CLI_ because Gemini passes only such
variables on where it strips the environment (GITHUB_SHA, SURFACE=Github). The pid is the second check.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import msgspec
from msgspec.structs import replace

from wal_agent.agents import base, installed_hooks
from wal_agent.agents.base import Deny, Env, HookSetup, HooksToInstall, HookTable, Injected
from wal_agent.agents.gemini.session import gemini_home
from wal_agent.agents.hook_line import (
    GONE,
    HOOK_SECONDS,
    ExtensionKind,
    bash_line,
    context_answer,
    extension_hooks,
    extension_name,
    on,
    owner_guard,
    parser,
    refuse_answer,
    renderer,
    sweep_extensions,
)
from wal_agent.agents.session_files import SessionId, require_object
from wal_agent.errors import ConfigError
from wal_agent.paths import shipped

SHELL = "run_shell_command"

# In the place of an answer where the model gave none in the whole turn. A conversation over its window gets there
# without a request, and Gemini exits with 0.
_NO_ANSWER = "[no response text]"
_UNANSWERED = "Gemini ended the turn without an answer of the model"

# Lines of a shell call's result, which Gemini writes only where it went wrong; here in JSON, so between its escapes.
_WRONG = re.compile(rb'(?:"|\\n)(?:Exit Code|Signal|Error): ')
# The shell tool refuses such a command itself and reports no error; what it runs has a label in front of its output.
_REFUSED = b'"Command injection detected: '
# How the shell tool's result begins where the command did not come to its end; else a label is in front of its output.
_CUT = re.compile(rb'"(?:<untrusted_context>\\n)?Command was (automatically cancelled|cancelled by user) ')
_RUNS_ON = re.compile(rb'"(?:<untrusted_context>\\n)?Command (?:is running in|moved to) background')
_STOPS = {
    b"automatically cancelled": "it took longer than Gemini waits for it",
    b"cancelled by user": "it was cancelled",
}

MARKER = "GEMINI_CLI_WAL_AGENT_RUN"
HOOK_TIMEOUT_MS = HOOK_SECONDS * 1000
OF_TOOLS = {"BeforeTool", "AfterTool"}
FIRM = {*OF_TOOLS, "BeforeAgent"}  # may wait, for the bucket, or for a resumed session; the others are answered at once
_HOLE = "__WAL_AGENT_SETUP__"  # in hooks/gemini.cjs

# hooks/gemini.cjs sets the variable in the Gemini that loads the run's extension; a nested one has another pid.
_RUNS_OWN = (
    '{ [ "$GEMINI_CLI_WAL_AGENT_HOOKS" = "$PPID" ] || '
    '[ -d "${GEMINI_CLI_HOME:-$HOME}/.gemini/extensions/wal-agent-$WAL_AGENT_RUN" ]; }'
)


class _Hook(msgspec.Struct):
    session_id: SessionId


class _Start(_Hook):
    source: str = ""


class _Prompt(_Hook):
    prompt: str = ""


class _Tool(_Hook):
    tool_name: str
    tool_input: msgspec.Raw


class _Response(msgspec.Struct):
    llm: msgspec.Raw = msgspec.field(name="llmContent", default=msgspec.Raw(b'""'))
    error: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"))


class _Ended(_Tool):
    tool_response: _Response


class _TurnOver(_Hook):
    prompt_response: str = "?"


def _turn_over(p: _TurnOver) -> base.HookEvent:
    if p.prompt_response == _NO_ANSWER:
        return base.TurnFailed(p.session_id, "other", _UNANSWERED)
    return base.TurnCompleted(p.session_id)


class _Notice(_Hook):
    message: str = ""


class _End(_Hook):
    reason: str = ""


def _ended(p: _Ended) -> base.ToolEnded:
    said = bytes(p.tool_response.llm)
    stop, runs_on = (_CUT.match(said), _RUNS_ON.match(said)) if p.tool_name == SHELL else (None, None)
    failed = bytes(p.tool_response.error) != b"null" or said.startswith(_REFUSED)
    clean = not failed and stop is None and _WRONG.search(said) is None
    result, cut = _result(p.tool_response), _STOPS[stop[1]] if stop else ""
    return base.ToolEnded(
        *(p.session_id, p.tool_name, require_object(p.tool_input), result, failed),
        clean=clean,
        cut=cut,
        runs_on=runs_on is not None,
    )


# The smallest set that shows phases and calls. PreCompress fires before each model request, with a payload that does
# not grow; BeforeModel and AfterModel carry the whole conversation each time (I9). No SessionEnd: by then the terminal
# is the user's again, and Gemini writes what it does for that hook into it (I6).
_EVENTS = {
    "SessionStart": on(_Start, lambda p: base.SessionStarted(p.session_id, p.source)),
    "BeforeAgent": on(_Prompt, lambda p: base.TurnStarted(p.session_id, p.prompt)),
    "BeforeTool": on(_Tool, lambda p: base.ToolStarting(p.session_id, p.tool_name, require_object(p.tool_input))),
    "AfterTool": on(_Ended, _ended),
    "PreCompress": on(_Hook, lambda p: base.ModelRequest(p.session_id)),
    "AfterAgent": on(_TurnOver, _turn_over),
    "Notification": on(_Notice, lambda p: base.AwaitingApproval(p.session_id, p.message)),
    "SessionEnd": on(_End, lambda p: base.SessionEnded(p.session_id, p.reason)),
}
EVENTS = tuple(event for event in _EVENTS if event != "SessionEnd")
parse = parser(_EVENTS)


def _result(response: _Response) -> bytes:
    """Return what the model got, without the display copy, which holds an edited file twice more."""
    parts = [b'{"llmContent":', bytes(response.llm)]
    if bytes(response.error) != b"null":
        parts += [b',"error":', bytes(response.error)]
    return b"".join([*parts, b"}"])


def deny_output(decision: Deny) -> str:
    """Return Gemini's deny: one line without a raw NUL, since JSON escapes both."""
    words: dict[str, object] = {"decision": "deny", "reason": decision.reason}
    if decision.stop:
        words |= {"continue": False, "stopReason": decision.reason}
    return json.dumps(words)


render = renderer(
    {"BeforeTool": deny_output, "BeforeAgent": deny_output},
    {"AfterTool": context_answer, "AfterAgent": lambda _, words: refuse_answer(deny_output(Deny(words)))},
)


def hook_line(setup: HookSetup, event: str) -> str:
    """Return the command of one event. Only a tool that has not run yet is refused; other broken hooks print nothing
    (I6)."""
    deny = deny_output(Deny(GONE)) if event == "BeforeTool" else None
    return owner_guard(setup, MARKER) + bash_line(setup, "gemini", event, event in FIRM, deny)


def _install_file(place: Path) -> dict[str, str]:
    """Return the file without which a Gemini whose settings have security.allowedExtensions would fail to start."""
    return {".gemini-extension-install.json": json.dumps({"source": str(place), "type": "local"})}


EXTENSION = ExtensionKind("Gemini", "gemini-extension.json", MARKER, _install_file)


def inject(setup: HookSetup, env: Env) -> Injected:
    home = gemini_home(env) if sys.platform == "darwin" else setup.run_dir
    made = EXTENSION.inject(setup, home, hook_table(setup))
    place = setup.run_dir / "gemini.cjs"
    try:
        place.write_text(preload_source(setup, made.paths[0], env), "utf-8")
    except OSError as e:
        raise ConfigError(f"Gemini's hooks could not be placed in {setup.run_dir}: {e.strerror or e}.") from e
    return replace(made, env=made.env | {"NODE_OPTIONS": _node_options(place, env)})


def preload_source(setup: HookSetup, extension: Path, env: Env) -> str:
    words = {
        "name": extension_name(setup.run),
        "folder": None if sys.platform == "darwin" else str(extension),
        "context": str(extension / f"{setup.run}.md") if setup.protocol else None,
        "options": env.get("NODE_OPTIONS"),
    }
    return shipped("hooks/gemini.cjs").read_text("utf-8").replace(_HOLE, json.dumps(words), 1)


def _node_options(place: Path, env: Env) -> str:
    """Return the user's options and one more, quoted by node's own rule."""
    quoted = str(place).replace("\\", "\\\\").replace('"', '\\"')
    return f'{env.get("NODE_OPTIONS", "")} --require "{quoted}"'.strip()


def hook_table(setup: HookSetup) -> HookTable:
    return extension_hooks(setup, EVENTS, OF_TOOLS, lambda event: hook_line(setup, event), HOOK_TIMEOUT_MS)


def sweep(env: Env, runtime: Path) -> None:
    sweep_extensions(gemini_home(env))


def hooks_to_install(env: Env) -> HooksToInstall:
    hooks = installed_hooks.hooks_for_settings(hook_table, True, _RUNS_OWN, named=True)
    return HooksToInstall("gemini", "Gemini", gemini_home(env) / "settings.json", hooks)
