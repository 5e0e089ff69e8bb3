"""What hooks/client.c does, for machines where it could not be compiled: carry what the agent says, print the answer.

    python3 -I -S -E client.py SOCKET RUN AGENT EVENT AGENT_PID SECONDS

Any failure, and no answer within SECONDS, ends this with a code other than 0 and nothing complete on stdout; the
agent's own hook line turns that into a refusal (I5). Its start is most of its time, so it imports built-in modules
only. See wal_agent/agents/hook_line.py for the wire.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import posix
import sys

CHUNK = 262144
MAX_FRAME = 1 << 20
# Who listens at the other end: ucred (pid, uid, gid), elsewhere LOCAL_PEERCRED's xucred (version, uid, ...).
PEER = (_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12) if sys.platform == "linux" else (0, 1, 76)


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
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGALRM])
    if not 1 <= int(seconds) <= 86400:
        posix._exit(2)
    _signal.alarm(int(seconds))
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    if sock.fileno() <= 1:
        posix._exit(5)  # stdin or stdout is closed: the socket must not take its place
    sock.connect(path)
    if int.from_bytes(sock.getsockopt(*PEER)[4:8], sys.byteorder) != posix.geteuid():
        posix._exit(4)  # whoever owns the folder when the run is gone could listen there
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
