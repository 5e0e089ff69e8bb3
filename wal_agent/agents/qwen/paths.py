"""Qwen Code's folders: its own, and the one of its sessions; and the `.env` files that may name them.

The folders are found as Qwen finds them, and then named in the run's environment, where Qwen looks first: whatever its
files say, or come to say, it looks nowhere else than wal-agent does. `.env` files are read as Qwen reads them: by the
dotenv package's own pattern, and JavaScript's idea of blanks and lines.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from wal_agent.agents.base import Env
from wal_agent.agents.program import effective_setting, read_layer
from wal_agent.errors import ConfigError

_BLANKS = "\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_SPACE = f"[{_BLANKS}]"
_BEGIN, _END = r"(?:\A|(?<=[\n\r\u2028\u2029]))", r"(?:\Z|(?=[\n\r\u2028\u2029]))"
_LINE = re.compile(
    rf"{_BEGIN}{_SPACE}*(?:export{_SPACE}+)?([A-Za-z0-9_.-]+)(?:{_SPACE}*={_SPACE}*?|:{_SPACE}+?)"
    rf"({_SPACE}*'(?:\\'|[^'])*'|{_SPACE}*\"(?:\\\"|[^\"])*\"|{_SPACE}*`(?:\\`|[^`])*`|[^#\r\n]+)?"
    rf"{_SPACE}*(?:#[^\n\r\u2028\u2029]*)?{_END}"
)
_QUOTED = re.compile(rf"{_BEGIN}(['\"`])(.*)\1{_END}", re.DOTALL)
_ENDS = re.compile(rf"\A{_SPACE}+|{_SPACE}+\Z")
_LIMIT = 1 << 20


def parse_dotenv(text: str) -> dict[str, str]:
    """Of two lines with one name the last counts."""
    found: dict[str, str] = {}
    for name, raw in _LINE.findall(re.sub(r"\r\n?", "\n", text)):
        value = _ENDS.sub("", raw)
        quote = value[:1]
        value = _QUOTED.sub(lambda m: m[2], value)
        found[name] = value.replace("\\n", "\n").replace("\\r", "\r") if quote == '"' else value
    return found


def read_dotenv(path: Path) -> dict[str, str]:
    """Empty where it cannot be read, as for Qwen."""
    try:
        with path.open("rb") as f:
            return parse_dotenv(f.read(_LIMIT).decode(errors="replace"))
    except OSError:
        return {}


HOME, RUNTIME = "QWEN_HOME", "QWEN_RUNTIME_DIR"
OUTPUT = "advanced.runtimeOutputDir"


def qwen_home(env: Env) -> Path:
    """Settings, extensions, credentials. A `.env` file of the user's may name it too. ConfigError where it is another
    folder in each project, or cannot be told for certain; so for the others here."""
    return _home_of(configured_folders(env), env)


def runtime_folder(env: Env) -> Path:
    """Sessions. What a project's settings ask for, `settings.hooks_off` refuses."""
    names = configured_folders(env)
    home = _home_of(names, env)
    if text := names.get(RUNTIME):
        return _absolute(RUNTIME, text, env)
    user = read_layer("", home / "settings.json")
    found = effective_setting([user] if user else [], *OUTPUT.split("."))
    text = found[1] if found is not None and isinstance(found[1], str) else ""
    if "$" in text:
        raise ConfigError(f"{OUTPUT} in Qwen Code's settings has a variable in it ({text!r}): {_ADVICE}")
    return _absolute(OUTPUT, text, env) if text else home


def folder_variables(env: Env) -> dict[str, str]:
    """The variables by which Qwen uses these folders."""
    return {HOME: str(qwen_home(env)), RUNTIME: str(runtime_folder(env))}


def project_folder(env: Env, workspace: Path) -> Path:
    return runtime_folder(env) / "projects" / re.sub(r"[^a-zA-Z0-9]", "-", str(workspace))


def user_home(env: Env) -> Path:
    return _plain("HOME", env.get("HOME", str(Path.home()) if "HOME" not in env else ""))


def configured_folders(env: Env) -> dict[str, str]:
    """The two variables: from the environment, where an empty one shuts out the files; else from the first file that
    has them."""
    found = {name: env[name] for name in (HOME, RUNTIME) if name in env}
    if found.get(HOME) and found.get(RUNTIME):
        return found
    first, redirected = _home_of(found, env), bool(found.get(HOME))
    _read_into(found, first)
    if not redirected:
        _read_into(found, first.parent)
        if (second := _home_of(found, env)) != first:
            _read_into(found, second)
    elif RUNTIME not in found and not (first / ".env").exists():
        _refuse_late(user_home(env))
    return found


def _read_into(found: dict[str, str], folder: Path) -> None:
    said = read_dotenv(folder / ".env")
    for name in (HOME, RUNTIME):
        if said.get(name):
            found.setdefault(name, said[name])


def _refuse_late(home: Path) -> None:
    """With QWEN_HOME in the environment, Qwen comes to these files only where no project on the way has a `.env`."""
    for file in (home / ".qwen/.env", home / ".env"):
        if read_dotenv(file).get(RUNTIME):
            raise ConfigError(
                f"{RUNTIME} stands in {file} and {HOME} in the environment: whether Qwen Code heeds the first depends "
                f"on the project. {_ADVICE}"
            )


_ADVICE = f"Name an absolute folder in {RUNTIME} in the environment. Nothing was run."


def _home_of(found: dict[str, str], env: Env) -> Path:
    text = found.get(HOME)
    return _absolute(HOME, text, env) if text else user_home(env) / ".qwen"


def _absolute(name: str, text: str, env: Env) -> Path:
    if text == "~" or text.startswith(("~/", "~\\")):
        return _plain(name, "/".join([str(user_home(env)), *re.split(r"[/\\]+", text[2:])]))
    return _plain(name, text)


def _plain(name: str, text: str) -> Path:
    try:
        text.encode()  # Qwen would look under another name
        absolute = text.startswith("/") and "\0" not in text
    except UnicodeEncodeError:
        absolute = False
    if not absolute:
        raise ConfigError(
            f"Qwen Code's folder {name}={text!a} is no absolute path, so it would be another one in each project. "
            "Name an absolute one. Nothing was run."
        )
    return Path(os.path.normpath("/" + text.lstrip("/")))
