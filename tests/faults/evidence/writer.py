"""Writes a file as an agent's tool does, in small pieces: `writer.py FILE TEXT` or `writer.py FILE OLD NEW`."""

import os
import sys

name, *texts = sys.argv[1:]
data = texts[0].encode()
if len(texts) == 2:
    with open(name, "rb") as f:  # noqa: PTH123
        data = f.read().replace(texts[0].encode(), texts[1].encode(), 1)
fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
for at in range(0, len(data), 4096):
    os.write(fd, data[at : at + 4096])
os.close(fd)
