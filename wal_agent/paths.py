"""Resolve folders: the user's that are wal-agent's, those that it never looks into, and the files shipped beside the
package (hooks/).

A wheel holds the shipped files as `wal_agent/_shipped/`; in a checkout they are beside the package, but what an
editable install compiled is in `_shipped/` there too (scripts/build_hooks.py).
"""

from __future__ import annotations

import os
import pwd
import re
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from wal_agent.errors import ConfigError

# -P: Python must not import a module from the folder in which it starts.
PROGRAM = (sys.executable, "-P", "-m", "wal_agent")

CREDENTIALS = (  # in HOME, of other programs than agents
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

MARKER = "WAL_AGENT_RUN"  # the run that a process belongs to
SOCKET = "WAL_AGENT_SOCKET"  # for hooks in an agent's own settings (configure-hooks --install), and for tools
PACKAGE = Path(__file__).resolve().parent
FOLDERS = ("hooks",)
LAUNCH = PACKAGE / "launch.py"  # started by its path, in front of an agent


def home(env: Mapping[str, str]) -> Path | None:
    """The user's, by the environment, else by the system's list of users; a real path."""
    named = env["HOME"] if env.get("HOME", "").startswith("/") else _listed_home()
    return Path(os.path.realpath(named)) if named else None


def user_home(env: Mapping[str, str]) -> Path:
    """`$HOME` as it is; where it is not set, or empty, the one in the system's list of users. ConfigError: that has no
    such user (a container whose user is only a number)."""
    found = Path(env["HOME"]) if env.get("HOME") else _listed_home()
    if found is None:
        raise ConfigError(
            f"HOME is not set, and user {os.getuid()} has no home folder on this system.",
            "Name one that this user may write to: export HOME=/folder",
        )
    return found


def _listed_home() -> Path | None:
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
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
    return base if base.is_absolute() else user_home(env) / default


def secret_name(name: str) -> bool:
    """Whether a file of this name, wherever it is, is likely to hold a credential."""
    return _SECRET.fullmatch(name) is not None


def shipped(name: str) -> Path:
    """The absolute path of e.g. "hooks/client.py" or "hooks" (the whole folder). ConfigError when it is missing:
    the installation is not complete. ValueError for a name outside those folders (a bug of the caller)."""
    if name.partition("/")[0] not in FOLDERS or ".." in name.split("/"):
        raise ValueError(f"not shipped: {name!r}")
    for base in (PACKAGE / "_shipped", PACKAGE.parent):
        if (base / name).exists():
            return base / name
    raise ConfigError(f"wal-agent's own file {name} is missing from {PACKAGE}.", "Install wal-agent again.")


def shipped_program(name: str) -> Path | None:
    """A shipped file that may be executed: a regular file, whose owner is the package's and which not everybody may
    write. None when there is none. ValueError as `shipped`."""
    try:
        path = shipped(name)
        found, package = path.lstat(), PACKAGE.stat()
    except (ConfigError, OSError):
        return None
    ours = stat.S_ISREG(found.st_mode) and found.st_uid == package.st_uid and not found.st_mode & stat.S_IWOTH
    return path if ours and os.access(path, os.X_OK) else None
