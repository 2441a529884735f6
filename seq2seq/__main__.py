"""`python -m seq2seq` does the same as the command `seq2seq`."""

import sys

from seq2seq.cli import main

sys.exit(main())
