"""`python -m seq2seq` does the same as the command `seq2seq`."""

import os
import sys
from contextlib import suppress

from seq2seq.cli import main

code = main()
if code and int(os.environ.get("WORLD_SIZE", "1")) > 1:
    # After an error under `torchrun`, sys.exit could hang, waiting for connections to ranks that no longer exist.
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
sys.exit(code)
