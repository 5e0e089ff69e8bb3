"""Decide whether a call starts what is meant to keep running: a server, a watcher. Pure.

Nobody need find out how such a call ended, so no recovery asks about it. One that also does something else is none.
"""

from __future__ import annotations

import re

from wal_agent.calls.reading import Command, Runs

TOOLS = frozenset({"monitor"})  # by `tool_name`: Claude Code's
_SCRIPTS = r"(run(-script)? )?(dev|start|serve|watch|preview|storybook)(:\S+)?"
# By program: its words, from the first on, behind which others may stand.
WORDS = {
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), _SCRIPTS),
    **dict.fromkeys(("vite", "webpack-dev-server", "http-server", "live-server", "json-server"), r"(?!build\b).*"),
    **dict.fromkeys(("uvicorn", "gunicorn", "hypercorn", "daphne", "ngrok"), r".*"),
    **dict.fromkeys(("nodemon",), r"\S+\.[cm]?[jt]s"),
    **dict.fromkeys(("next", "nuxt", "astro", "remix", "gatsby"), r"(dev|develop|start|preview)"),
    **dict.fromkeys(("ng", "vue-cli-service", "mkdocs", "jekyll", "hugo", "parcel", "zola"), r"(serve|server|watch)"),
    **dict.fromkeys(("python", "python3"), r"-m http\.server"),
    **dict.fromkeys(("flask",), r"(.* )?run"),
    **dict.fromkeys(("rails",), r"(s|server)"),
    **dict.fromkeys(("php",), r"-S"),
    **dict.fromkeys(("tsc", "jest", "vitest", "rollup", "esbuild", "tailwindcss"), r"(.* )?(-w|--watch)"),
    **dict.fromkeys(("tail",), r"(.* )?(-[a-zA-Z]*[fF]|--follow\S*)"),
    **dict.fromkeys(("kubectl",), r"port-forward"),
    **dict.fromkeys(("cargo",), r"watch"),
}
_PATTERNS = {program: re.compile(rf"(?:{words})(?= |$)") for program, words in WORDS.items()}
_NOTHING = frozenset({"cd", "echo", "true", "sleep", "export"})


def serves(call: Runs) -> bool:
    """Whether all that it starts is meant to keep running, as far as it was read."""
    if call.tool in TOOLS:
        return True
    if call.commands is None or not call.shell:
        return False
    rest = [c for c in call.commands if not c.guess and c.program not in _NOTHING]
    return bool(rest) and all(map(_serves, rest))


def _serves(command: Command) -> bool:
    found = _PATTERNS.get(command.program)
    known = all(word.text is not None for word in command.words)
    words = " ".join(word.text or "" for word in command.words)
    return known and not command.effects and found is not None and found.match(words) is not None
