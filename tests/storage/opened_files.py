"""Run a command of seq2seq, and write the paths that it opens for reading and for writing to a JSON file.

    python opened_files.py JSON_FILE COMMAND ARGUMENT...
"""

import json
import os
import signal
import sys
import threading

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
read, written = set(), set()


def watch(event, arguments):
    """Record the paths of an audit event of Python."""
    if event == "open" and isinstance(arguments[0], str | bytes):
        path, mode, flags = arguments
        writes = bool(flags & WRITING) if isinstance(flags, int) else any(letter in (mode or "r") for letter in "wax+")
        (written if writes else read).add(os.path.abspath(os.fsdecode(path)))
    elif event in ("os.remove", "os.rmdir"):
        path, directory = arguments                                             # -1: none
        base = os.readlink(f"/proc/self/fd/{directory}") if directory >= 0 else ""
        written.add(os.path.abspath(os.path.join(base, os.fsdecode(path))))
    elif event in ("os.rename", "os.mkdir", "os.link", "os.symlink", "os.truncate"):
        written.update(os.path.abspath(os.fsdecode(path)) for path in arguments[:2] if isinstance(path, str | bytes))


def stop_when_served():
    """End a server 3 seconds after it has begun to listen."""
    threading.Timer(3, os.kill, (os.getpid(), signal.SIGTERM)).start()


if __name__ == "__main__":
    result, *command = sys.argv[1:]
    sys.addaudithook(watch)
    from seq2seq.cli import main

    if command[0] == "serve":
        import uvicorn

        startup = uvicorn.Server.startup

        async def started(self, *arguments, **options):
            await startup(self, *arguments, **options)
            stop_when_served()

        uvicorn.Server.startup = started
    code = main(command)
    with open(result, "w") as file:
        json.dump({"code": code, "read": sorted(read), "written": sorted(written)}, file)
