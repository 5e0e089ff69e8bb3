"""The shapes of Claude Code's settings: one of another shape voids the whole file silently, and wal-agent's hooks with
it.

Read in the program of the tested version; settings whose shape is too intricate to be sure of are missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
