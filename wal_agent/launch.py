"""Run by its path as `python -I -S -E launch.py PARENT -- ARGV`: become the agent, tied to the supervisor's life.

Linux ends the agent with SIGKILL when its parent dies (I5: "wrapper dead"), which must be asked for in the child
itself, after the fork. A helper program does it: code between fork and exec is not safe in a process with threads.
"""

import os
import signal
import sys

SOONER = 200  # of 1000: above this supervisor's, which must live to say what happened


def sooner_out_of_memory() -> None:
    """Where memory runs out, let the kernel choose the agent. Raising one's own score needs no right."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:  # noqa: PTH123 - pathlib would cost this start 5 ms
            score = int(file.read())
            file.seek(0)
            file.write(str(min(1000, score + SOONER)))
    except (OSError, ValueError):
        return


def main() -> None:
    parent, argv = int(sys.argv[1]), sys.argv[3:]
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
        sooner_out_of_memory()
    if os.getppid() != parent:  # it died before the request above counted
        os.kill(os.getpid(), signal.SIGKILL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a ^C that waits ends this as it would the agent: without a word
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python; what the user's shell ignores stays ignored (I6)
        signal.signal(ignored, signal.SIG_DFL)
    os.execvp(argv[0], argv)


main()
