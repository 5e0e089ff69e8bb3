"""Real operations of the shell, of file tools and of npm, killed at places of theirs and let run to their end."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.evidence.halt import Halter, places
from tests.faults.evidence.stage import Call, Snapshot, age, assessed, shell, snapshot, truth
from tests.faults.evidence.tally import Tally

WRITER = Path(__file__).with_name("writer.py")


@dataclass(frozen=True, slots=True)
class Trial:
    """`kind` as it is counted. `setup` fills an empty folder. `argv`: what runs, if not the call's own command."""

    kind: str
    call: Call
    setup: Callable[[Path], None]
    argv: tuple[str, ...] = ()
    outside: Path | None = None

    @property
    def name(self) -> str:
        return str(self.call.fields.get("command") or f"{self.call.tool} {self.call.fields['file_path']}")

    def command(self) -> list[str]:
        return list(self.argv) or ["bash", "-c", str(self.call.fields["command"])]


def shop(top: Path) -> None:
    """A small project."""
    for name, text in (("a", "aaa\n"), ("b", "b\n" * 4000), ("empty", ""), ("out.log", "old\n")):
        (top / name).write_text(text)
    for name in ("d", "deep/e/f", "hollow", "deep/hollow"):
        (top / name).mkdir(parents=True)
    for name in ("d/x", "d/y", "d/z", "deep/e/f/g", "deep/h"):
        (top / name).write_text(name)
    (top / "d/y").chmod(0o755)
    (top / "big").write_bytes(b"0123456789abcdef" * 40_000)
    (top / "link").symlink_to("a")
    (top / "tool.sh").write_text("echo one\necho two > made\nrm -f made\n")


SHELL = {
    "rm": ["rm -rf d", "rm a b empty", "rm -f a nope", "rm -r deep/e d", "cd d && rm x y"],
    "rmdir": ["rmdir hollow deep/hollow"],
    "mv": ["mv a b d", "mv a b", "mv a new", "mv d deep", "mv d new/"],
    "cp": ["cp -r d new", "cp -p a b", "cp a new", "cp a b", "cp big new", "cp a b d", "cp -a deep new"],
    "mkdir": ["mkdir -p new/one/two", "mkdir new d2 d3", "mkdir new", "mkdir -p d"],
    "touch": ["touch a b", "touch new a", "touch new"],
    "ln": ["ln -s a new", "ln a new", "ln -sf b a", "ln -sfn b link"],
    "truncate": ["truncate -s 10 new", "truncate -s 2 a", "truncate -s 0 b"],
    "sed -i": ["sed -i -e 's/b/c/g' b a", "sed -i s/a/b/ a", "sed -i 2d b"],
    "write": [
        "echo new > a",
        "echo new > new",
        "echo -n x > out.log",
        "cat > new <<'EOF'\none\ntwo $x\nEOF\n",
        "tee a b <<'EOF'\nhere\nEOF\n",
        "tee a <<'EOF'\nhere\nEOF\n",
        "> a",
        ": > new",
    ],
    "append": ["echo new >> new", "echo new >> a", "echo -n more >> b", "cat >> a <<'EOF'\nq\nEOF\n"],
    "output": [
        "bash tool.sh > new",
        "printf 'x\\n%s\\n' y > out.log",
        "rm a > new",
        "ls -l > out.log",
        "bash tool.sh > out.log",
        "cat a b >> out.log",
    ],
    "list": ["mkdir new && touch new/x && cp a new/y", "cp a new && rm a", "rm a; rm b", "touch one && ls && mv b two"],
}


def _files() -> list[Trial]:
    write = [sys.executable, "-I", "-S", str(WRITER)]
    found = []
    for name, text in (("a", "new text\n" * 5000), ("new", "small\n")):
        call = Call("write_file", {"file_path": f"/TOP/{name}", "content": text})
        found.append(Trial("write_file", call, shop, (*write, name, text)))
    for name, old, new in (("a", "aa", "other\r"), ("b", "b\n", "c\n"), ("d/x", "d/x", "a much longer text")):
        fields: dict[str, object] = {"file_path": f"/TOP/{name}", "old_string": old, "new_string": new}
        found.append(Trial("replace", Call("replace", fields), shop, (*write, name, old, new)))
    return found


def _across() -> list[Trial]:
    """A move to another file system, where there is one: copied, then removed."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == Path(tempfile.gettempdir()).stat().st_dev:
        return []
    target = shm / f"wal-agent-trial-{os.getpid()}"
    return [Trial("mv", shell(f"mv big {target}"), shop, outside=target)]


TRIALS = [Trial(kind, shell(c), shop) for kind, commands in SHELL.items() for c in commands] + _files() + _across()


class Stage:
    """Runs trials in folders of their own below `top`."""

    def __init__(self, halter: Halter, top: Path) -> None:
        self._halter, self._top, self._n = halter, top, 0

    def folder(self, setup: Callable[[Path], None]) -> Path:
        self._n += 1
        made = self._top / str(self._n) / "shop"
        made.mkdir(parents=True)
        setup(made)
        age(made)
        return made

    def trial(self, trial: Trial, most: int) -> Tally:
        """Lets it run to its end, and kills it at `most` places (0: all)."""
        tally = Tally()
        stops, after = self._run(trial, None, None, tally)
        for stop in places(stops, most, random.Random(trial.name)):
            self._run(trial, stop, after, tally)
        return tally

    def _run(self, trial: Trial, stop: int | None, after: Snapshot | None, tally: Tally) -> tuple[int, Snapshot]:
        """Runs it up to a place, judges and counts; how many places there are, and what it left, which is the `after`
        of the others."""
        top = self.folder(trial.setup)
        fields = {k: _at(v, top) if isinstance(v, str) else v for k, v in trial.call.fields.items()}
        call = Call(trial.call.tool, fields)
        was, facts = snapshot(top, trial.outside), call.facts(top)
        stops = self._halter.run([_at(w, top) for w in trial.command()], top, stop)
        now = snapshot(top, trial.outside)
        (said,) = assessed(top, (call, facts))
        where = f"{trial.name}, at {stop or 'its end'} ({said.why})"
        tally.add(trial.kind, said.finding, truth(was, now, now if after is None else after), where)
        shutil.rmtree(top.parent)
        if trial.outside is not None:
            trial.outside.unlink(missing_ok=True)
        return stops, now


def _at(text: str, top: Path) -> str:
    return text.replace("/TOP/", f"{top}/", 1) if text.startswith("/TOP/") else text


def npm_trials(url: str, folder: Path) -> list[Trial]:
    """Installs from the registry at `url`; `folder` is for npm's cache and for a project that has its packages."""

    def project(top: Path) -> None:
        text = json.dumps({"name": "shop", "version": "1.0.0", "dependencies": {"alpha": "1.0.0"}}, indent=2)
        (top / "package.json").write_text(f"{text}\n")
        rest = f"cache={folder}/cache\naudit=false\nfund=false\nupdate-notifier=false\n"
        (top / ".npmrc").write_text(f"registry={url}\n{rest}")

    made = folder / "made"
    made.mkdir()
    project(made)
    subprocess.run(["npm", "install"], cwd=made, check=True, capture_output=True)

    def locked(top: Path) -> None:
        project(top)
        shutil.copy(made / "package-lock.json", top)

    def installed(top: Path) -> None:
        shutil.copytree(made, top, symlinks=True, dirs_exist_ok=True)

    return [
        Trial("npm", shell("npm ci"), locked),
        Trial("npm", shell("npm ci"), installed),
        Trial("npm", shell("npm install delta"), installed),
    ]
