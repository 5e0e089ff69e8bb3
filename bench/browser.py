"""How long does the report of 10,000 calls take to open in Chromium? `python -m bench.browser [--picture FILE]`.

The figure is the page's own: from the start of the navigation until its rows are painted and its script is at rest.
`Chromium` here also drives the tests of `make browser`. Both need Chromium; CI has none.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from wal_agent.cli.report import render_page

CALLS: Final = 10_000
ROUNDS: Final = 7
LIMIT: Final = 60.0  # seconds that an answer may take
FLAGS: Final = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
OPENED: Final = """JSON.stringify([document.documentElement.dataset.ready,
  performance.getEntriesByType("navigation")[0].loadEventEnd,
  (performance.getEntriesByName("first-contentful-paint")[0] || {startTime: 0}).startTime])"""

Json = dict[str, Any]


class Chromium:
    """A headless Chromium with one tab, driven over a pipe. `events`: what it reported, in order."""

    def __init__(self, folder: Path, width: int = 1200, height: int = 800) -> None:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        if program is None:
            raise FileNotFoundError("Chromium is missing: apt-get install chromium")
        (read, theirs_out), (theirs_in, write) = os.pipe(), os.pipe()
        profile = f"--user-data-dir={folder / 'profile'}"
        argv = [program, *FLAGS, f"--window-size={width},{height}", profile, "--remote-debugging-pipe", "about:blank"]
        line = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        with (folder / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", line, "bash", *argv],
                pass_fds=(theirs_in, theirs_out),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)
        self._rest, self._last, self.events = b"", 0, list[Json]()
        self._session = ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._out.close()
        self._process.kill()
        self._process.wait()
        self._in.close()

    def ask(self, method: str, **params: object) -> Json:
        """Call a method of the DevTools protocol. RuntimeError: it failed."""
        self._last += 1
        own = {"sessionId": self._session} if self._session else {}
        message = {"id": self._last, "method": method, "params": params, **own}
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                found: Json = answer["result"]
                return found
            self.events.append(answer)

    def _next(self) -> Json:
        while b"\0" not in self._rest:
            data = self._in.read(1 << 16)
            if not data:
                raise RuntimeError("Chromium has ended.")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        found: Json = json.loads(line)
        return found

    def run(self, script: str) -> Any:
        """Return what the page says to a script."""
        done = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(json.dumps(done["exceptionDetails"])[:400])
        return done["result"].get("value")

    def open(self, page: Path) -> float:
        """Open a report, and return the seconds until it is painted and at rest."""
        self.ask("Page.navigate", url=page.as_uri())
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            try:
                ready, loaded, painted = json.loads(self.run(OPENED))
            except (RuntimeError, TypeError):
                ready, loaded, painted = "", 0, 0  # between two pages
            if ready == "yes" and loaded and painted:
                return float(max(loaded, painted)) / 1000
            time.sleep(0.02)
        raise TimeoutError(f"{page} was not ready after {LIMIT:g} s")

    def wait(self, script: str) -> None:
        """Wait until the page says that this is true. TimeoutError."""
        end = time.monotonic() + LIMIT
        while not self.run(script):
            if time.monotonic() > end:
                raise TimeoutError(f"not true after {LIMIT:g} s: {script}")
            time.sleep(0.02)

    def picture(self, place: Path) -> None:
        """Write what the window shows as a PNG."""
        place.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def complaints(self) -> list[str]:
        """Return the console's errors and warnings, exceptions, and requests that left it, other than for the page."""
        found = []
        failed = [event["params"] for event in self.events if event.get("method") == "Network.loadingFailed"]
        held = {params["requestId"] for params in failed if params.get("blockedReason") == "csp"}
        for event in self.events:
            kind, params = event.get("method"), event.get("params", {})
            if kind in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                found.append(json.dumps(params)[:400])
            elif kind == "Network.requestWillBeSent" and params["requestId"] not in held:
                url = params["request"]["url"]
                found += [] if url.startswith(("file:", "about:")) else [url]
        return found


def long_report(calls: int) -> str:
    """Return the page of a job of so many calls, with a start every 2,500."""
    entries: list[Json] = []

    def add(kind: str, time: float, **fields: object) -> None:
        entries.append(
            {"record": len(entries) + 1, "epoch": 1 + len(entries) // 5000, "type": kind, "time": time, **fields}
        )

    for n in range(1, calls + 1):
        at = 1_795_000_000.0 + 3 * n
        if n % 2500 == 1:
            cause = "dead" if n > 1 else "first"
            add("opening", at, host={"name": f"vm-{n // 2500}"}, cause=cause, agent="gemini", agent_version="0.58.0")
        command = f"./charge.sh {n}" if n % 3 == 0 else f"grep -rn 'order {n}' src"
        cls = "mutation" if n % 3 == 0 else "read_only"
        text = {"data": json.dumps({"command": command}), "size": len(command)}
        add("intent", at, call=n, tool="run_shell_command", cls=cls, rule="shell", input=text)
        result = {"data": "line of a result\n" * 12, "size": 204}
        add("end", at + 1, call=n, how="done", by="hook", duration_ms=900 + n % 700, result=result)
    return render_page(f"Job of {calls} calls", f"{len(entries)} records", entries, [])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.browser", description=__doc__)
    parser.add_argument("--page", type=Path, help="a report to look at instead")
    parser.add_argument("--picture", type=Path, help="write a PNG of it")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wal-agent-bench-") as name:
        folder = Path(name)
        page = (given.page or folder / "report.html").absolute()
        if given.page is None:
            page.write_text(long_report(CALLS), "utf-8")
        with Chromium(folder) as browser:
            seconds = [browser.open(page) for _ in range(ROUNDS)]
            if given.picture is not None:
                browser.picture(given.picture)
            what = f"{page.stat().st_size / 1e6:.1f} MB"
            print(
                f"  {what}: open in {statistics.median(seconds):.2f} s (median of {ROUNDS}; {max(seconds):.2f} at most)"
            )
            for each in browser.complaints():
                print(f"  complaint: {each}")


if __name__ == "__main__":
    main()
