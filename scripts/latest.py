"""`make latest`: test the version of each agent that npm serves today; where the tests pass, make it the tested one.

    python -m scripts.latest [AGENT...]

A version is installed into .tools/latest, and the contract suite runs on it through WAL_AGENT_TEST_<AGENT>. Where it
passes, tests/agents.json and the agent's module or description name it, the version that was tested until now goes to
`also`, and docs/AGENTS.md is made again. The exit code is 1 when a test failed or npm did not answer. Nothing is
committed.

What the pinned name cannot show is told too: that npm calls it deprecated, a newer major under another tag or under one
of its `successors`, and a silence, as of a program that has moved to another name.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NotRequired, TypedDict

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "tests/agents.json"
FOLDER = ROOT / ".tools/latest"
KEEP = 1  # older versions that stay in the second lane
SILENT = 90  # days without a new version
_VERSION = re.compile(r"\d+\.\d+\.\d+")


class Pin(TypedDict):
    """One agent in tests/agents.json. `also`: older versions, on which a part of the contract suite runs. `successors`:
    names on npm under which a later one is or may be. `acp`: what serves the Agent Client Protocol for it."""

    package: str
    version: str
    also: NotRequired[list[str]]
    successors: NotRequired[list[str]]
    acp: NotRequired[str]


Answer = Mapping[str, Any]
"""npm's of a package: `version` (the newest), `deprecated`, `dist-tags` and `time`, as far as there are; {}: none."""


# ---- pure parts ----------------------------------------------------------------------------------------------------


def moved(pin: Pin, version: str) -> Pin:
    """The pin once `version` is the tested one: the version before it goes to `also`, and the oldest leaves."""
    also = [old for old in (pin["version"], *pin.get("also", [])) if old != version]
    return {**pin, "version": version, "also": also[:KEEP]}


def signs(pin: Pin, answers: Mapping[str, Answer], today: date) -> list[str]:
    """What tells that the pinned name is not where the program goes on. `answers`: by package."""
    own = answers.get(pin["package"], {})
    found = []
    if own.get("deprecated"):
        found.append(f"npm calls {pin['package']} deprecated: {own['deprecated']}")
    for tag, version in sorted(own.get("dist-tags", {}).items()):
        if tag != "latest" and _major(version) > _major(pin["version"]):
            found.append(f"{pin['package']}@{tag} is {version}")
    last = str(own.get("time", {}).get(own.get("version"), ""))[:10]
    if last and (today - date.fromisoformat(last)).days > SILENT:
        found.append(f"{pin['package']} has had no new version since {last}: look whether it has moved")
    later = {name: answers.get(name, {}).get("version") for name in pin.get("successors", [])}
    return found + [f"{name} is its successor, now {version}" for name, version in later.items() if version]


def _major(version: str) -> int:
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0


def spelled(pins: Mapping[str, Pin]) -> str:
    """tests/agents.json, one agent a line."""
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(pin)}" for name, pin in pins.items()) + "\n}\n"


def source(agent: str) -> Path:
    """The file that names an agent's versions: its description, or its module."""
    described = ROOT / f"wal_agent/agents/declared/{agent}.toml"
    return described if described.is_file() else ROOT / f"wal_agent/agents/{agent}/__init__.py"


def renamed(module: str, pin: Pin) -> str:
    """The text of such a file with the versions of `pin`. ValueError: it does not name them as expected."""
    also = ", ".join(f'"{old}"' for old in pin.get("also", []))
    tuples = "also: tuple[str, ...] = " in module
    olds = ("also: tuple[str, ...] = ", f"({also},)" if also else "()") if tuples else ("also = ", f"[{also}]")
    for head, value in (("tested = ", f'"{pin["version"]}"'), olds):
        module, count = re.subn(rf"^({re.escape(head)}).*$", rf"\g<1>{value}", module, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"the module has {count} lines with {head!r}")
    return module


def suite(agent: str, agents: Sequence[str]) -> tuple[str, list[str]]:
    """pytest's -k and the files that test one agent: its own, and those of every agent with its name in the id."""
    files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"tests/contract/test_{agent}*.py"))
    longer = [f" and not {other}" for other in agents if agent in other and other != agent]  # pi, and copilot
    return f"{agent}{''.join(longer)}", [*files, "tests/contract/test_agents.py", "tests/contract/test_tools.py"]


def failures(output: str) -> list[str]:
    """The tests that pytest's summary names as failed."""
    return re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)


# ---- what acts -----------------------------------------------------------------------------------------------------


def served(package: str) -> Answer:
    """What npm says of the package; {} where it says nothing."""
    command = ["npm", "view", package, "version", "deprecated", "dist-tags", "time", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {}
    answer = json.loads(done.stdout)
    return answer if isinstance(answer, dict) and _VERSION.fullmatch(str(answer.get("version"))) else {}


def installed(agent: str, package: str, version: str) -> Path:
    folder = FOLDER / f"{agent}@{version}"
    subprocess.run(["sh", ROOT / "scripts/install-agents", folder, f"{package}@{version}"], check=True)
    return folder / f"node_modules/.bin/{agent}"


def tested(agent: str, agents: Sequence[str], program: Path) -> list[str]:
    """Run the contract suite on `program`; the failed tests."""
    words, files = suite(agent, agents)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-k", words, *files]
    env = {**os.environ, f"WAL_AGENT_TEST_{agent.upper()}": str(program)}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)
    (FOLDER / f"{agent}.log").write_text(done.stdout)
    return failures(done.stdout) or ([f"pytest ended with {done.returncode}"] if done.returncode else [])


def main(wanted: Sequence[str]) -> int:
    pins: dict[str, Pin] = json.loads(PINS.read_text("utf-8"))
    if unknown := [name for name in wanted if name not in pins]:
        print(f"no such agent: {', '.join(unknown)}. Known: {', '.join(pins)}", file=sys.stderr)
        return 64
    bad = changed = False
    for agent in wanted or list(pins):
        pin = pins[agent]
        answers = {name: served(name) for name in (pin["package"], *pin.get("successors", []))}
        version = answers[pin["package"]].get("version", "")
        for sign in signs(pin, answers, date.today()):
            print(f"{agent}: {sign}", flush=True)
        if not version:
            print(f"{agent}: npm does not serve {pin['package']}", flush=True)
            bad = True
        elif version == pin["version"]:
            print(f"{agent}: {version} is the newest, and the tested one", flush=True)
        elif failed := tested(agent, list(pins), installed(agent, pin["package"], version)):
            print(f"{agent}: {version} fails (tested: {pin['version']}), see {FOLDER / f'{agent}.log'}", flush=True)
            print("".join(f"    {name}\n" for name in failed), end="", flush=True)
            bad = True
        else:
            pins[agent] = moved(pin, version)
            module = source(agent)
            module.write_text(renamed(module.read_text("utf-8"), pins[agent]), "utf-8")
            PINS.write_text(spelled(pins), "utf-8")
            print(
                f"{agent}: {version} passes and is the tested one now; second lane: {pins[agent]['also']}", flush=True
            )
            changed = True
    if changed:
        page = subprocess.run(
            [sys.executable, "-m", "wal_agent", "agents", "--markdown"], cwd=ROOT, capture_output=True, check=True
        )
        (ROOT / "docs/AGENTS.md").write_bytes(page.stdout)
        print("Look at the changes, install the second lane (make tools), run make test, and commit.", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
