"""Download Multi30k (Elliott et al. 2016, arXiv:1605.00459) and write it as parallel text, a sentence a line.

    python recipes/multi30k/prepare.py
    python recipes/multi30k/prepare.py --hub DIRECTORY --output elsewhere/data

The data set on the Hugging Face hub has 29,000 training pairs, 1,014 validation pairs, and the 1,000 pairs of
test_2016_flickr.
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from seq2seq.data.corpus import Counts, as_lines, read_corpus
from seq2seq.errors import UserError
from seq2seq.recipe import Corpus
from seq2seq.translation.text_io import writing

HUB = "bentrevett/multi30k"
LANGUAGES = ("de", "en")
# File names for the splits of the hub. The authors of the corpus use these names.
NAMES = {"train": "train", "validation": "val", "test": "test_2016_flickr"}


def prepare(hub: str, output: Path) -> dict[str, Counts]:
    """Write every split to `output`, and return the counts of the lines of each file name.

    Raises:
        UserError: the data set cannot be loaded or lacks a split or column, or `output` cannot be written.
    """
    splits, counts = {}, {}
    for split, name in NAMES.items():
        counts[name] = Counts()
        corpus = Corpus(hub=hub, split=split, source=LANGUAGES[0], target=LANGUAGES[1])
        splits[name] = [pair for _, *pair in as_lines(read_corpus(corpus, Path(), counts[name]))]
    make_directory(output)
    # All splits are read before any is written, so that a failed download cannot leave files of two versions.
    for name, pairs in splits.items():
        with ExitStack() as stack:
            for side, language in enumerate(LANGUAGES):
                file = stack.enter_context(writing(output / f"{name}.{language}"))
                file.write("".join(f"{pair[side]}\n" for pair in pairs))
    return counts


def make_directory(path: Path) -> None:
    """Create a directory. Raises UserError if it cannot be created."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be made: {error.strerror}. Name another directory with --output.") from error


def main() -> int:
    """Run the script and return its exit code."""
    parser = argparse.ArgumentParser(
        description="Download Multi30k and write it as parallel text.", formatter_class=argparse.RawTextHelpFormatter,
        epilog="examples:\n  python recipes/multi30k/prepare.py\n"
               "  python recipes/multi30k/prepare.py --hub a/directory/of/jsonl/files --output elsewhere/data")
    parser.add_argument("--hub", default=HUB, metavar="NAME",
                        help=f"data set on the hub, or a directory (default: {HUB})")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("data"), metavar="DIRECTORY",
                        help="directory to write to (default: the one that the recipes use)")
    arguments = parser.parse_args()
    try:
        counts = prepare(arguments.hub, arguments.output)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    for name, count in counts.items():
        print(f"{arguments.output / name}.{{{','.join(LANGUAGES)}}}: {count.summary()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
