"""The hooks of one run: an extension in the user's `~/.qwen/extensions` (agents/extension.py).

Not a system settings file (QWEN_CODE_SYSTEM_SETTINGS_PATH): its hooks are silently lost as soon as the user's and the
project's settings have hooks of their own, and variables in it are filled in from the environment.
"""

from __future__ import annotations

from dataclasses import replace

from wal_agent.agents import extension
from wal_agent.agents.base import Env, HookSetup, HookTable, Injected
from wal_agent.agents.qwen.hooks import EVENTS, FIRM
from wal_agent.agents.qwen.line import HOOK_TIMEOUT_MS, MARKER, hook_line
from wal_agent.agents.qwen.paths import folder_variables, qwen_home

EXTENSION = extension.ExtensionKind("Qwen Code", "qwen-extension.json", MARKER)


def inject(setup: HookSetup, env: Env) -> Injected:
    # What is set already, no `.env` file and no settings change: neither the folders nor that hooks run.
    more = {**folder_variables(env), "QWEN_CODE_SIMPLE": "0"}
    made = EXTENSION.inject(setup, qwen_home(env), hook_table(setup))
    return replace(made, env=made.env | more)


def hook_table(setup: HookSetup) -> HookTable:
    table = extension.hook_table(setup, EVENTS, FIRM, lambda event: hook_line(setup, event), HOOK_TIMEOUT_MS)
    for group in table["Notification"]:
        group["matcher"] = "permission_prompt"
    return table


def sweep(env: Env) -> None:
    extension.sweep(qwen_home(env))
