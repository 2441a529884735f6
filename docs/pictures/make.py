"""Draw the picture of the README from the run of `make demo`: the cross-attention of a test sentence.

    .venv/bin/python docs/pictures/make.py [RUN]
"""

import sys
from pathlib import Path

import matplotlib

from seq2seq import attention_map

HERE = Path(__file__).resolve().parent
SENTENCE = "It takes ten hours to go from Hong Kong to Shanghai by train."


def main(run: Path) -> None:
    """Write phrasebook.svg."""
    with matplotlib.rc_context({"svg.hashsalt": "seq2seq"}):
        attention_map(run, SENTENCE).savefig(HERE / "phrasebook.svg", metadata={"Date": None}, bbox_inches="tight")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[1] / "runs" / "phrasebook")
