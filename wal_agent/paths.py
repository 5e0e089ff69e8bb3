"""Folders of the user's that are wal-agent's, and those that it never looks into."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

AGENTS = (
    ".gemini",
    ".claude",
    ".claude.json",
    ".codex",
    ".local/share/opencode",
    ".qwen",
    ".copilot",
    ".pi",
)  # in HOME
CREDENTIALS = (
    *(".ssh", ".gnupg", ".netrc", ".npmrc", ".git-credentials", ".aws", ".azure", ".kube", ".docker/config.json"),
    *(".config/gh", ".config/gcloud"),
)
# What launchers of programs (asdf, mise, volta ...) go by, where HOME is another one: variables, and folders in HOME.
LAUNCHERS = ("ASDF_", "BUN_", "FNM_", "MISE_", "NIX_", "NODENV_", "NVM_", "PNPM_", "PROTO_", "PYENV_", "VOLTA_")
LIBRARIES = ("DYLD_LIBRARY_PATH", "LD_LIBRARY_PATH", "NODE_EXTRA_CA_CERTS", "NPM_CONFIG_PREFIX", "npm_config_prefix")
_MANAGERS = {
    "ASDF_DATA_DIR": ".asdf",
    "MISE_CONFIG_DIR": ".config/mise",
    "MISE_DATA_DIR": ".local/share/mise",
    "NODENV_ROOT": ".nodenv",
    "NVM_DIR": ".nvm",
    "PROTO_HOME": ".proto",
    "PYENV_ROOT": ".pyenv",
    "VOLTA_HOME": ".volta",
}
_SECRET = re.compile(
    r"\.env(\..*)?|\.envrc|\.netrc|\.npmrc|\.pypirc|\.pgpass|\.git-credentials|id_(rsa|dsa|ecdsa|ed25519).*"
    r"|.*\.(pem|key|p12|pfx|keystore|kdbx)|(.*[._-])?(auth|credentials?|secrets?|tokens?|api[_-]?keys?)(\.\w+)?"
    r"|oauth[_-].*|cookies(\.\w+)?|\.aider\.conf\.ya?ml",
    re.IGNORECASE,
)


def home(env: Mapping[str, str]) -> Path | None:
    """The user's, by the environment, else by the system's list of users; a real path."""
    if env.get("HOME", "").startswith("/"):
        return Path(env["HOME"]).resolve()
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()
    except KeyError:
        return None


def launchers(env: Mapping[str, str]) -> dict[str, str]:
    """The variables with which the user's programs are found and start although HOME is another one."""
    at = home(env)
    found = {name: str(at / place) for name, place in _MANAGERS.items() if at is not None and (at / place).is_dir()}
    return found | {k: v for k, v in env.items() if k.startswith(LAUNCHERS) or k in LIBRARIES}


def state_dir(env: Mapping[str, str]) -> Path:
    """Where this user's durable local state lives: `$XDG_STATE_HOME/wal-agent` (a relative one is ignored: XDG)."""
    return _base(env, "XDG_STATE_HOME", ".local/state") / "wal-agent"


def config_dir(env: Mapping[str, str]) -> Path:
    """Where this user's own settings stand: `$XDG_CONFIG_HOME/wal-agent`."""
    return _base(env, "XDG_CONFIG_HOME", ".config") / "wal-agent"


def _base(env: Mapping[str, str], variable: str, default: str) -> Path:
    base = Path(env.get(variable, ""))
    return base if base.is_absolute() else Path(env.get("HOME") or Path.home()) / default


def in_a_secret_place(parts: Sequence[str]) -> bool:
    """Whether a path under HOME is, or is in, what holds credentials. Case counts for nothing: some disks say so."""
    low = "/".join(parts).lower()
    return any(low == known or low.startswith(known + "/") for known in (*AGENTS, *CREDENTIALS))


def secret_name(name: str) -> bool:
    """Whether a file of this name, wherever it is, is likely to hold a credential."""
    return _SECRET.fullmatch(name) is not None
