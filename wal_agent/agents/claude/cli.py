"""Claude Code's command line: its options, the checks before a start, and the start or resume itself.

The options are those of `claude --help` (commander) of the tested version, and the hidden ones.

`hooks_off_reason` reads Claude's settings and arguments before anything is started: would the hooks fire, and would the
session be saved (I5)? `disableAllHooks` is refused wherever it is set. wal-agent's own settings say the contrary, which
takes precedence over what is written while Claude runs; at the start it would also run a repository's own hooks,
against the user's choice. What only a running Claude can know (settings that an organisation sends, a settings file
that does not validate) is left to the handshake and to the watch for calls that no hook announced.

A new session gets an id from wal-agent. The recovery prompt is not given on the command line: there Claude takes a
leading `/` for a command of its own and adds the files that `@path` names, and an argument of more than 128 KiB does
not even start. `resume.inject_prompt` writes it into the restored session instead, as the user's last message; the
command line only asks to act on it.

The shapes of its settings are those of the tested version: one of another shape voids the whole file silently, and
wal-agent's hooks with it. Settings whose shape is too intricate to be sure of are missing.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wal_agent.agents.base import ACT, Cli, Command, Env, NewSession, ResumeSession
from wal_agent.agents.claude import hooks
from wal_agent.agents.claude.hooks import claude_home
from wal_agent.agents.program import (
    Arg,
    Program,
    Syntax,
    is_given,
    last_value,
    read_object,
    served_by,
    takes_stream,
    to_words,
)
from wal_agent.errors import ConfigError

Shape = Callable[[Any], bool]

_TEXT = """$schema advisorModel agent apiKeyHelper autoMemoryDirectory awsAuthRefresh awsCredentialExport claudeMd
    gcpAuthRefresh language minimumVersion model otelHeadersHelper outputStyle plansDirectory pluginTrustMessage
    prUrlTemplate proxyAuthHelper requiredMaximumVersion requiredMinimumVersion"""
_TEXTS = """allowedHttpHookUrls availableModels claudeMdExcludes companyAnnouncements disabledMcpjsonServers
    enabledMcpjsonServers fallbackModel httpHookAllowedEnvVars pluginSuggestionMarketplaces"""
_FLAG = """agentPushNotifEnabled allowAllClaudeAiMcps allowManagedHooksOnly allowManagedMcpServersOnly
    allowManagedPermissionRulesOnly alwaysThinkingEnabled autoCompactEnabled autoDreamEnabled autoMemoryEnabled
    autoScrollEnabled autoUploadSessions awaySummaryEnabled axScreenReader channelsEnabled disableAgentView
    disableAllHooks disableArtifact disableBundledSkills disableClaudeAiConnectors disableRemoteControl
    disableSideloadFlags disableSkillShellExecution disableWorkflows doneMeansMerged enableAllProjectMcpServers
    enableArtifact enableWorkflows enforceAvailableModels fastMode fastModePerSessionOptIn fileCheckpointingEnabled
    forceRemoteSettingsRefresh includeCoAuthoredBy includeGitInstructions inputNeededNotifEnabled isolatePeerMachines
    precomputeCompactionEnabled prefersReducedMotion promptSuggestionEnabled remoteControlAtStartup
    respectGitignore respondToBashCommands showClearContextOnPlanAccept showMessageTimestamps showThinkingSummaries
    showTurnDuration skipAutoPermissionPrompt skipDangerousModePermissionPrompt skipWebFetchPreflight
    skipWorkflowUsageWarning spinnerTipsEnabled switchModelsOnFlag syntaxHighlightingDisabled terminalProgressBarEnabled
    terminalTitleFromRename todoFeatureEnabled useAutoModeDuringPlan verbose voiceEnabled
    wheelScrollAccelerationEnabled workflowKeywordTriggerEnabled wslInheritsWindowsSettings"""
_COUNT = "cleanupPeriodDays skillListingMaxDescChars totalTokensReminderBudget"
# Claude ignores a wrong one of these by itself.
_ANY = """autoCompactWindow editorMode effortLevel footerLinksRegexes forceLoginGatewayUrl forceLoginMethod
    preferredNotifChannel strictPluginOnlyCustomization teammateMode theme ultracode viewMode"""

SYNTAX = Syntax.of(
    value="""agent agents append-system-prompt append-system-prompt-file debug-file effort fallback-model input-format
        json-schema max-budget-usd model name output-format permission-mode plugin-dir plugin-url session-id
        remote-control-session-name-prefix setting-sources settings system-prompt system-prompt-file
        advisor agent-color agent-id agent-name agent-type deep-link-cwd-b64 deep-link-last-fetch deep-link-repo
        managed-settings max-thinking-tokens max-turns parent-session-id permission-prompt-tool plan-mode-instructions
        plugin-dir-no-mcp prefill prefill-b64 resume-session-at rewind-files sdk-url task-budget team-name
        teammate-mode thinking thinking-display workload""",
    maybe="debug from-pr prompt-suggestions remote-control resume worktree cloud rc remote teleport",
    many="""add-dir allowedTools allowed-tools betas disallowedTools disallowed-tools file mcp-config tools channels
        dangerously-load-development-channels""",
    short="c=continue d=debug h=help n=name p=print r=resume v=version w=worktree",
)
_COMMANDS = "auth auto-mode doctor gateway install mcp plugin plugins project setup-token ultrareview update upgrade"
COMMANDS = frozenset(_COMMANDS.split())
SERVES = frozenset(("agents", "rc", "remote-control"))  # begin sessions that no hook of this run would report
NO_SESSION = frozenset(("version", "help", "init-only"))
STREAM = frozenset(("input-format", "replay-user-messages"))
PROMPT_OPTIONS = frozenset(("", "prefill", "prefill-b64")) | STREAM
SESSION_OPTIONS = frozenset(
    ("resume", "continue", "session-id", "fork-session", "from-pr", "resume-session-at", "rewind-files")
)

SESSION = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
MANAGED = Path("/Library/Application Support/ClaudeCode" if sys.platform == "darwin" else "/etc/claude-code")
_LIMIT = 1 << 22  # bytes of a settings file
_NOTHING = "so no tool call could be logged. Nothing was run."
_ELSEWHERE = {
    "bg": "runs the session in the background, away from wal-agent",
    "background": "runs the session in the background, away from wal-agent",
    "cloud": "runs the session in the cloud, where wal-agent cannot save it",
    "remote": "runs the session in the cloud, where wal-agent cannot save it",
    "teleport": "takes the session from the cloud into a folder of its own choice",
    "sdk-url": "takes its sessions from another program; wal-agent does not save those",
    "worktree": "makes Claude Code work in another folder than the one that wal-agent saves. Make the worktree first "
    "and start wal-agent in it",
    "no-session-persistence": "keeps the session from being written, so it could not be saved",
}
_SWITCHES = {"CLAUDE_CODE_SIMPLE": "as --bare does", "CLAUDE_CODE_SAFE_MODE": "as --safe-mode does"}

PROGRAM = Program("claude", "@anthropic-ai/claude-code")
_SYSTEM = ("append-system-prompt", "append-system-prompt-file")
_AGAIN = "CLAUDE_CODE_RESUME_INTERRUPTED_TURN"
ADAPTER = Program("claude-agent-acp", "@agentclientprotocol/claude-agent-acp")


def anything(_: Any) -> bool:
    return True


def of_type(kind: type) -> Shape:
    return lambda value: isinstance(value, kind)


flag, text = of_type(bool), of_type(str)


def filled(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def url(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"https?://[\w.-]+(:\d{1,4})?([/?#]\S*)?", value) is not None


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53


def positive(value: Any) -> bool:
    return number(value) and value > 0


def count(value: Any) -> bool:
    return isinstance(value, int) and positive(value)


def between(low: float, high: float) -> Shape:
    return lambda value: number(value) and low <= value <= high


def one_of(words: str) -> Shape:
    known = words.split()
    return lambda value: isinstance(value, str) and value in known


def many(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def table(shape: Shape) -> Shape:
    return lambda value: isinstance(value, dict) and all(map(shape, value.values()))


def either(*shapes: Shape) -> Shape:
    return lambda value: any(shape(value) for shape in shapes)


def fields(may: Mapping[str, Shape], must: Iterable[str] = ()) -> Shape:
    """Accept an object with these fields, those in `must` at least; Claude ignores others."""
    needed = frozenset(must)
    return lambda value: (
        isinstance(value, dict)
        and needed <= value.keys()
        and all(shape(value[name]) for name, shape in may.items() if name in value)
    )


def every(shape: Shape, names: str) -> dict[str, Shape]:
    return dict.fromkeys(names.split(), shape)


_command = one_of("command")
_always = {"if": text, "timeout": positive, "statusMessage": text, "once": flag}
_asks = {**_always, "prompt": text, "model": text, "continueOnBlock": flag}
_HOOKS: dict[str, Shape] = {
    "command": fields(
        {
            **_always,
            **every(text, "command"),
            **every(flag, "async asyncRewake"),
            **every(filled, "rewakeMessage rewakeSummary"),
            "args": many(text),
            "shell": one_of("bash powershell"),
        },
        ["command"],
    ),
    "prompt": fields(_asks, ["prompt"]),
    "agent": fields(_asks, ["prompt"]),
    "mcp_tool": fields({**_always, **every(text, "server tool"), "input": table(anything)}, ["server", "tool"]),
    "http": fields({**_always, "url": url, "headers": table(text), "allowedEnvVars": many(text)}, ["url"]),
}


def _hook(value: Any) -> bool:
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and kind in _HOOKS and _HOOKS[kind](value)


hook_groups = many(fields({"matcher": text, "hooks": many(_hook)}, ["hooks"]))

_scalar = either(text, number, flag, many(text))
_options = table(_scalar)
_sandbox = {
    **every(
        flag,
        """enabled failIfUnavailable autoAllowBashIfSandboxed allowUnsandboxedCommands enableWeakerNestedSandbox
        enableWeakerNetworkIsolation allowAppleEvents""",
    ),
    "network": fields(
        {
            **every(many(text), "allowedDomains deniedDomains allowUnixSockets"),
            **every(flag, "allowManagedDomainsOnly allowAllUnixSockets allowLocalBinding"),
            **every(number, "httpProxyPort socksProxyPort"),
            "allowMachLookup": many(lambda value: text(value) and "*" not in value[:-1]),
            "tlsTerminate": fields(every(filled, "caCertPath caKeyPath")),
        }
    ),
    "filesystem": fields(
        {**every(many(text), "allowWrite denyWrite denyRead allowRead"), "allowManagedReadPathsOnly": flag}
    ),
    "credentials": fields(
        {
            "files": many(fields({"path": filled, "mode": one_of("deny")}, ["path", "mode"])),
            "envVars": many(
                fields(
                    {"name": lambda v: text(v) and bool(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", v, re.ASCII))}
                    | {"mode": one_of("deny")},
                    ["name", "mode"],
                )
            ),
        }
    ),
    "ignoreViolations": table(many(text)),
    "excludedCommands": many(text),
    "ripgrep": fields({"command": text, "args": many(text)}, ["command"]),
}

SETTINGS: dict[str, Shape] = {
    **every(text, _TEXT),
    **every(many(text), _TEXTS),
    **every(flag, _FLAG),
    **every(count, _COUNT),
    **every(anything, _ANY),
    **every(one_of("disable"), "disableAutoMode disableDeepLinkRegistration"),
    "attribution": fields({"commit": text, "pr": text, "sessionUrl": flag}),
    "autoMode": fields({**every(many(text), "allow soft_deny hard_deny environment"), "classifyAllShell": flag}),
    "autoUpdatesChannel": one_of("latest stable rc"),
    "daemonColdStart": one_of("transient ask"),
    "defaultShell": one_of("bash powershell"),
    "defaultView": one_of("chat transcript"),
    "enabledPlugins": table(either(flag, many(text))),
    "env": table(either(text, number, flag)),
    "feedbackSurveyRate": between(0, 1),
    "fileSuggestion": fields({"type": _command, "command": text}, ["type", "command"]),
    "forceLoginOrgUUID": either(text, many(text)),
    "hooks": table(hook_groups),
    "modelOverrides": table(text),
    "permissions": fields(
        {
            **every(many(text), "allow deny ask additionalDirectories"),
            **every(one_of("disable"), "disableBypassPermissionsMode disableAutoMode"),
            "defaultMode": one_of("acceptEdits auto bypassPermissions default dontAsk plan"),
        }
    ),
    "pluginConfigs": table(fields({"mcpServers": table(_options), "options": _options})),
    "remote": fields({"defaultEnvironmentId": text}),
    "sandbox": fields(_sandbox),
    "skillListingBudgetFraction": lambda value: positive(value) and value <= 1,
    "skillOverrides": table(one_of("on name-only user-invocable-only off")),
    "spinnerTipsOverride": fields({"excludeDefault": flag, "tips": many(text)}, ["tips"]),
    "spinnerVerbs": fields({"mode": one_of("append replace"), "verbs": many(text)}, ["mode", "verbs"]),
    "statusLine": fields(
        {"type": _command, "command": text, "padding": number, "hideVimModeIndicator": flag}, ["type", "command"]
    ),
    "subagentStatusLine": fields({"type": _command, "command": text}, ["type", "command"]),
    "totalTokensReminder": one_of("off infinite fixed countdown padded-countdown"),
    "tui": one_of("default fullscreen"),
    "voice": fields({"enabled": flag, "mode": one_of("hold tap"), "autoSubmit": flag}),
    "worktree": fields({**every(many(text), "symlinkDirectories sparsePaths"), "baseRef": one_of("fresh head")}),
}


def check_settings(values: dict[str, Any]) -> None:
    """Raise ValueError for settings that Claude would refuse, or that are unknown here."""
    for name, value in values.items():
        if name == "hooks" and isinstance(value, dict):
            for event, groups in value.items():
                if not hook_groups(groups):
                    raise ValueError(f"its hooks for {event} are none that Claude Code takes")
        elif name not in SETTINGS:
            raise ValueError(f"wal-agent cannot check its {name[:80]}; that can stand in .claude/settings.local.json")
        elif not SETTINGS[name](value):
            raise ValueError(f"its {name} is none that Claude Code takes")


parse_args = SYNTAX.read


def subcommand(args: Sequence[str]) -> str:
    """Return the subcommand, or "". With an option for printing anywhere, or behind `--`, what looks like one is a
    prompt."""
    given = parse_args(args)
    first = next((arg for arg in given if not arg.name), None)
    prints = is_given(given, "print") or "-p" in args or "--print" in args
    known = first is not None and first.words[0] != "--" and first.value in COMMANDS | SERVES
    return first.value if first is not None and known and not prints else ""


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    given = parse_args(args)
    return (
        _by_argument(args, given)
        or (
            (found := _organisation(given)) and f"Claude Code's hooks are off by the organisation ({found}), {_NOTHING}"
        )
        or _not_merged(given, workspace)
        or _by_setting(given, workspace, env)
        or _by_variable(given, workspace, env)
    )


def _by_argument(args: Sequence[str], given: list[Arg]) -> str | None:
    if (command := subcommand(args)) in SERVES:
        return f"`claude {command}` begins sessions that wal-agent does not save. Nothing was run."
    until = args.index("--") if "--" in args else len(args)
    for word in ("--bare", "--safe-mode"):  # Claude looks for these anywhere, also where they are another's value
        if word in args[:until]:
            return f"{word} switches Claude Code's hooks off, {_NOTHING}"
    for name, what in _ELSEWHERE.items():
        if last_value(given, name) is not None:
            return f"--{name} {what}. Nothing was run."
    return None


def _by_setting(given: list[Arg], workspace: Path, env: Env) -> str | None:
    for shown, values in _layers(given, workspace, env):
        if values.get("disableAllHooks") is True:
            return f"Claude Code's hooks are off ({shown}: disableAllHooks is true), {_NOTHING}"
    return None


def _by_variable(given: list[Arg], workspace: Path, env: Env) -> str | None:
    places = [("the environment", dict(env))]
    layers = [*_layers(given, workspace, env), *_managed(given)]
    places += [(shown, own) for shown, values in layers if isinstance(own := values.get("env"), dict)]
    for shown, values in places:
        for name, how in _SWITCHES.items():
            if _true(values.get(name)):
                return f"{name} in {shown} switches Claude Code's hooks off, {how}, {_NOTHING}"
        if _true(values.get("CLAUDE_CODE_SKIP_PROMPT_HISTORY")):
            return (
                f"CLAUDE_CODE_SKIP_PROMPT_HISTORY in {shown} keeps the session from being written, so it could not be "
                "saved. Nothing was run."
            )
    return None


def _organisation(given: list[Arg]) -> str | None:
    """Return the file and the key by which an organisation's settings switch off hooks that are not its own."""
    for shown, values in _managed(given):
        locked = values.get("strictPluginOnlyCustomization")
        for key, off in (
            ("disableAllHooks", _off(values.get("disableAllHooks"))),
            ("allowManagedHooksOnly", values.get("allowManagedHooksOnly") is True),
            ("strictPluginOnlyCustomization", locked is True or (isinstance(locked, list) and "hooks" in locked)),
        ):
            if off:
                return f"{shown}: {key} is {json.dumps(values[key])}"
    return None


def _off(value: Any) -> bool:
    """Apply 2.1.330's rule for an organisation's `disableAllHooks`; elsewhere, and in 2.1.197, only `true` counts."""
    return value not in (None, False, "false")


def settings_files(args: Sequence[str], workspace: Path, env: Env) -> list[Path]:
    """Return those that a running Claude Code reads again and that take precedence over this run's: the
    organisation's."""
    return _managed_files()


def switch_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    """Look only at the organisation's: this run's own (hooks.STAY_ON) take precedence over the user's and the
    project's."""
    return _organisation(parse_args(args))


def _not_merged(given: list[Arg], workspace: Path) -> str | None:
    """Refuse a --settings of the user's that is wrong: it goes into one file with wal-agent's and would void both."""
    users = last_value(given, "settings")
    if users is None:
        return None
    try:
        given_settings(users, workspace)
    except (OSError, ValueError) as error:
        shown = users if len(users) <= 200 else users[:199] + "…"
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        return (
            f"--settings {shown} cannot be used: {why}. For one thing that it does not take, Claude Code would drop "
            f"the hooks too, {_NOTHING}"
        )
    return None


def given_settings(value: str, folder: Path) -> dict[str, Any]:
    """Read the value of `--settings`: a file's name, or JSON in braces. OSError, ValueError: Claude would refuse it."""
    text = value.strip()
    if not (text.startswith("{") and text.endswith("}")):
        with (folder / value).open("rb") as f:
            text = f.read(_LIMIT).decode("utf-8-sig")
    try:
        values = json.loads(text, parse_constant=_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    check_settings(values)
    return values


def _constant(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


def _layers(given: list[Arg], workspace: Path, env: Env) -> Iterator[tuple[str, dict[str, Any]]]:
    project = workspace / ".claude"
    places = [
        ("~/.claude/settings.json", claude_home(env) / "settings.json"),
        (".claude/settings.json", project / "settings.json"),
        (".claude/settings.local.json", project / "settings.local.json"),
    ]
    for shown, path in places:
        if (values := _read(path)) is not None:
            yield shown, values
    if (users := last_value(given, "settings")) is not None:
        yield "--settings", given_settings(users, workspace)


def _managed_files() -> list[Path]:
    more = MANAGED / "managed-settings.d"
    try:
        extra = sorted(p for p in more.iterdir() if p.suffix == ".json")
    except OSError:
        extra = []
    return [MANAGED / "managed-settings.json", *extra]


def _managed(given: list[Arg]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in _managed_files():
        if (values := _read(path)) is not None:
            yield str(path), values
    for arg in given:
        if arg.name == "managed-settings":
            try:
                values = json.loads(arg.value)
            except (ValueError, RecursionError):
                continue
            if isinstance(values, dict):
                yield "--managed-settings", values


def _read(path: Path) -> dict[str, Any] | None:
    return read_object(path, lambda data: json.loads(data.decode("utf-8-sig")))


def _true(value: Any) -> bool:
    """As Claude reads a variable."""
    return str(value).lower().strip() in ("1", "true", "yes", "on")


locate = PROGRAM.locate


def passthrough(args: Sequence[str]) -> bool:
    given = parse_args(args)
    return subcommand(args) in COMMANDS or any(is_given(given, name) for name in NO_SESSION)


def session_from_args(args: Sequence[str]) -> str | None:
    """Return the chosen session: its id, "" where only Claude knows it (the last one, a title, a fork), or None."""
    given = parse_args(args)
    chosen = last_value(given, "session-id")
    if chosen is not None:
        return chosen
    resumed = last_value(given, "resume")
    if resumed is None:
        other = ("continue", "from-pr", "fork-session")
        return "" if any(last_value(given, name) is not None for name in other) else None
    known = SESSION.fullmatch(resumed) and last_value(given, "fork-session") is None
    return resumed if known else ""


def prompt_from_args(args: Sequence[str]) -> str | None:
    """Return the first word that is no option's."""
    return next((arg.value for arg in parse_args(args) if not arg.name and arg.value), None)


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    """Apply Claude's own rule. A program that sends its prompts on stdin is one more way to sit before it."""
    given = parse_args(args)
    return takes_stream(given) or (tty and last_value(given, "print") is None)


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    given = parse_args(args)
    ours, given = _injected(given, env)
    prompted = isinstance(session, ResumeSession) and session.acts
    behind: list[str] = []
    if isinstance(session, ResumeSession):
        given = [arg for arg in given if arg.name not in SESSION_OPTIONS]
        ours += ["--resume", session.id]
        if session.drops_prompt:
            kept = STREAM if session.asked else frozenset[str]()
            given = [arg for arg in given if arg.name not in PROMPT_OPTIONS - kept]
        if prompted:
            behind = ["--", ACT]  # else an option that takes many words would take these too
    elif session_from_args(args) is None:
        ours += ["--session-id", session.id]
    # Set, it would send the cut-off prompt again by itself; empty counts as not set.
    extra = {_AGAIN: ""} if _AGAIN in env else {}
    argv = (str(cli.path), *ours, *to_words(given), *behind)
    return Command(argv, extra, prompted and not interactive)


def acp_server(cli: Cli, args: Sequence[str], env: Env, folder: Path) -> Command:
    """Claude Code has no such mode; the protocol's own adapter starts it by its SDK, as the program that a variable
    names. That is one line which adds this run's options to those of the adapter."""
    ours, given = _injected(parse_args(args), env)
    return served_by(ADAPTER, "CLAUDE_CODE_EXECUTABLE", [str(cli.path), *ours, *to_words(given)], env, folder)


def _injected(given: list[Arg], env: Env) -> tuple[list[str], list[Arg]]:
    """Return the options that carry this run's settings and the protocol, each merged with the user's own, and the
    other arguments."""
    if not env.get(hooks.SETTINGS):
        return [], given
    ours = Path(env[hooks.SETTINGS])
    users = last_value(given, "settings")
    try:
        place = ours if users is None else hooks.merge_settings(ours, given_settings(users, Path.cwd()))
    except (OSError, ValueError) as error:
        why = f"--settings cannot be used with this run's hooks: {error}."
        raise ConfigError(why if users else f"Claude Code's settings could not be made: {error}.") from error
    text, file = (last_value(given, name) for name in _SYSTEM)
    served = hooks.mcp_file(ours)
    servers = [f"--mcp-config={served}"] if served.exists() else []  # beside the user's own
    rest = [arg for arg in given if arg.name != "settings"]
    if text is not None and file is not None:  # Claude refuses the two of them by itself
        return ["--settings", str(place), *servers], rest
    try:
        both = _system_file(hooks.protocol_file(ours), text, file)
    except OSError as error:
        raise ConfigError(f"--append-system-prompt-file {file} cannot be read: {error.strerror or error}.") from error
    rest = [arg for arg in rest if arg.name not in _SYSTEM]
    return ["--settings", str(place), "--append-system-prompt-file", str(both), *servers], rest


def _system_file(protocol: Path, text: str | None, file: str | None) -> Path:
    """Write the user's addition to the system prompt, then the protocol, to a file: an argument holds 128 KiB at
    most."""
    own = text if file is None else Path(file).read_bytes().decode(errors="replace")
    if not own:
        return protocol
    both = protocol.with_name("claude-system-prompt.md")
    both.write_bytes(f"{own}\n\n{protocol.read_text()}".encode(errors="surrogateescape"))
    return both
