"""One hook call: carry what the agent says to wal-agent, print what it answers. See wal_agent/hookwire.py.

    python3 -I -S -E client.py SOCKET RUN AGENT EVENT AGENT_PID SECONDS

Any failure, and no answer within SECONDS, ends this with a code other than 0 and nothing complete on stdout; the
agent's own hook line turns that into a refusal (I5). Starts in about 10 ms, so it imports built-in modules only.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import posix
import sys

CHUNK = 262144
MAX_FRAME = 1 << 20


def receive(sock: _socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        piece = sock.recv(size - len(parts))
        if not piece:
            posix._exit(3)  # wal-agent closed: it has no answer
        parts += piece
    return parts


def frame(kind: bytes, body: bytes = b"") -> bytes:
    return kind + len(body).to_bytes(4, "big") + body


def main(path: str, run: str, agent: str, event: str, agent_pid: str, seconds: str) -> None:
    _signal.signal(_signal.SIGALRM, _signal.SIG_DFL)  # the alarm ends this process, whatever it is doing
    _signal.alarm(int(seconds))
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    sock.connect(path)
    hello = "\0".join(("wal-agent-hook/1", run, agent, event, str(posix.getpid()), agent_pid))
    sock.sendall(frame(b"H", hello.encode()))
    while piece := posix.read(0, CHUNK):
        sock.sendall(frame(b"D", piece))
    sock.sendall(frame(b"E"))
    head = receive(sock, 5)
    size = int.from_bytes(head[1:], "big")
    if head[:1] != b"A" or size > MAX_FRAME:
        posix._exit(4)
    out = memoryview(receive(sock, size))
    while out:
        out = out[posix.write(1, out) :]
    sock.sendall(frame(b"T"))


if __name__ == "__main__":
    main(*sys.argv[1:])
    posix._exit(0)  # no interpreter shutdown: it costs a millisecond and has nothing to do
