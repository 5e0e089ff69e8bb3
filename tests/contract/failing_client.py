"""A hook client that breaks as the tool input says (`ran-<row>`); what names no row is answered like a sound one."""

import _socket
import os
import signal
import sys
import time

payload = sys.stdin.buffer.read()
row = payload.partition(b"ran-")[2].partition(b'"')[0].decode()
out = sys.stdout.buffer


def left_over() -> None:
    """For the test to end."""
    os.close(os.open(f"{__file__}.{os.getpid()}", os.O_CREAT))


match row:
    case "killed":
        out.write(b"wal-agent:allow")
        out.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    case "hung":
        left_over()
        time.sleep(600)
    case "stopped":
        left_over()
        os.kill(os.getpid(), signal.SIGSTOP)
    case "failed":
        sys.exit(1)
    case "silent":
        sys.exit(0)
    case "garbage":
        out.write(b"{}\n\0")
    case "truncated":
        out.write(b'wal-agent:say {"decision": "allow"\0')
    case "no-nul":
        out.write(b"wal-agent:allow")
    case "bad-json-end":
        out.write(b'wal-agent:say "decision"}\0')
    case "gone":
        _socket.socket(_socket.AF_UNIX).connect("/nonexistent/hook.sock")
    case _:
        out.write(b"wal-agent:allow\0")
