"""What does a checkpoint cost a changing call? `python -m bench checkpoint`.

The intent of a call is made durable on `file://`, alone and with a checkpoint of 50 calls riding in the same segment,
in turn. Making the checkpoint itself happens in another thread than the hook's.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.measure import interleaved, scaled
from bench.owner import owned
from wal_agent.bucket import open_bucket
from wal_agent.conversation.checkpoint import Occasion, checkpoint_of
from wal_agent.records import End, Intent, Payload
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.writer import DEFERRED

ROUNDS = scaled(300, 3)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="wal-agent-bench-") as folder:
        bucket = open_bucket((Path(folder) / "bucket").as_uri())
        with owned(Path(folder), bucket) as (context, _, _):
            job = context.job
            fill(job)
            made = checkpoint_of(job.writer.state, Occasion("bench", "gemini", job.writer.acked.seq, "periodic", 1.0))
            print(f"  a checkpoint of {len(made.body)} bytes")

            def put(riding: bool) -> Callable[[], object]:
                def once() -> None:
                    if riding:
                        job.writer.append(made, wait=DEFERRED)
                    job.writer.append(intent(job)).wait(20)

                return once

            def make() -> None:
                checkpoint_of(job.writer.state, Occasion("bench", "gemini", 1, "periodic", 1.0))

            found = interleaved(
                {"an intent": put(False), "an intent and a checkpoint": put(True), "making the checkpoint": make},
                ROUNDS,
            )
            for times in found:
                print(times.line(found[0]))
        bucket.close()


def fill(job: OpenedJob) -> None:
    rng = random.Random(7)
    for _ in range(60):
        one = intent(job, "".join(rng.choices("abcdefgh /.-_", k=2000)))
        result = "".join(rng.choices("abcdefgh \\n", k=4000)).encode()
        end = End(time=2.0, call=one.call, how="done", by="hook", result=Payload(size=len(result), data=result))
        job.writer.append(one, end).wait(20)


def intent(job: OpenedJob, text: str = "x") -> Intent:
    data = f'{{"command":"{text}"}}'.encode()
    input = Payload(size=len(data), data=data)
    return Intent(
        time=1.0,
        call=job.writer.next_call(),
        tool="run_shell_command",
        input=input,
        cls="unknown",
        rule="r",
        session="s",
    )


if __name__ == "__main__":
    main()
