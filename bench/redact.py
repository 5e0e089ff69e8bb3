"""What redaction finds, what it eats, and what it costs: `python -m bench redact`.

The corpus is the tests'. The cost is told against one `grep -E` over the same text with as many patterns as there are
beginnings of keys: what a user would run who looks for keys by hand, and which finds neither places nor names.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from bench.measure import interleaved, scaled
from tests.unit.redact.corpus import KEYS, UNKNOWN, Sample, keys, leaks, placed
from wal_agent.redact import redact

ROOT = Path(__file__).parent.parent
TIMES = scaled(50, 1)
CYCLES = scaled((5, 1), (1, 0))  # that count, and those before that do not


def main() -> None:
    print(f"  known keys: {_missed(list(keys(TIMES)))}; told by their place: {_missed(list(placed(TIMES)))}")
    print(f"  keys of no known issuer: {_missed(list(keys(TIMES * 10, forms=UNKNOWN)))}")
    kept = (ROOT / "tests/unit/redact/kept.txt").read_text().splitlines()
    code = [line for path in sorted((ROOT / "wal_agent").rglob("*.py")) for line in path.read_text().splitlines()]
    for name, lines in (("hashes, paths, ids, logs", kept), ("source code of this project", code)):
        changed = sum(redact(line) != line for line in lines)
        print(f"  {name}: {changed} of {len(lines)} lines changed, {1000 * changed / len(lines):.2f} in 1,000")
    text = "\n".join(code)
    patterns = "\n".join(f"{line[18:].split('{')[0]}[0-9A-Za-z_-]{{20,}}" for line in KEYS.strip().splitlines())
    with tempfile.TemporaryDirectory() as folder:
        file, words = Path(folder, "text"), Path(folder, "patterns")
        file.write_text(text)
        words.write_text(patterns.replace("$", "[$]"))
        grep = ["grep", "-Ec", "-f", str(words), str(file)]
        times = interleaved(
            {"grep -E": lambda: subprocess.run(grep, stdout=subprocess.DEVNULL), "redact": lambda: redact(text)},
            *CYCLES,
        )
    for each in times:
        print(each.line(times[0]), f"  {len(text) / each.median / 1000:.1f} MB/s")


def _missed(samples: list[Sample]) -> str:
    missed = sum(leaks(sample, redact(sample.text)) for sample in samples)
    return f"{missed} of {len(samples)} not found"


if __name__ == "__main__":
    main()
