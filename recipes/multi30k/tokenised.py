"""Multi30k as papers report it: punctuation normalised, tokenised as Moses does, lowercased.

    python recipes/multi30k/tokenised.py prepare                    # recipes/multi30k/data to data/tokenised
    python recipes/multi30k/tokenised.py score OUTPUT REFERENCE.de                  # tokenises both, then compares
    python recipes/multi30k/tokenised.py score --as-is OUTPUT REFERENCE.de          # both are tokenised already

`prepare` writes what recipes/multi30k/en_de_published.yaml trains on. `score` prints the BLEU of tokenised, lowercased
words, without sacreBLEU's own tokenisation: the figure of papers on this data set. The ending of the reference's name
is the language. A second tokenisation would change text ("man 's" becomes "man ' s"), hence --as-is. Needs sacremoses
(pip install sacremoses).
"""

import argparse
import sys
from pathlib import Path

from seq2seq.errors import UserError
from seq2seq.translation.text_io import writing

HERE = Path(__file__).parent
NAMES = ("train", "val", "test_2016_flickr")
LANGUAGES = ("de", "en")


def tokenised(lines: list[str], language: str) -> list[str]:
    """Each line as Moses' normalize-punctuation.perl, tokenizer.perl -no-escape and lowercase.perl make it.

    Raises:
        UserError: sacremoses is not installed.
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        raise UserError("tokenising as Moses does needs sacremoses: pip install sacremoses") from None
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    return [tokenizer.tokenize(normalizer.normalize(line), return_str=True, escape=False).lower() for line in lines]


def read_lines(path: Path) -> list[str]:
    """The lines of a text file.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def prepare(data: Path, output: Path) -> None:
    """Write all files of `data` tokenised and lowercased into `output`.

    Raises:
        UserError: a file is missing.
    """
    files = {f"{name}.{language}": tokenised(read_lines(data / f"{name}.{language}"), language)
             for name in NAMES for language in LANGUAGES}
    output.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        with writing(output / name) as file:
            file.write("".join(f"{line}\n" for line in lines))


def score(hypothesis: Path, reference: Path, as_is: bool) -> str:
    """BLEU with its signature. as_is: the files are tokenised and lowercased already.

    Raises:
        UserError: the files are not parallel, or the name of the reference ends in no language.
    """
    from sacrebleu.metrics import BLEU

    language = reference.suffix[1:]
    found, wanted = read_lines(hypothesis), read_lines(reference)
    if not as_is:
        if language not in LANGUAGES:
            raise UserError(f"{reference}: the name must end in its language, .{' or .'.join(LANGUAGES)}")
        found, wanted = tokenised(found, language), tokenised(wanted, language)
    if len(found) != len(wanted):
        raise UserError(f"{hypothesis} has {len(found):,} lines, {reference} {len(wanted):,}. A translation has a line "
                        "for each line of its reference.")
    bleu = BLEU(tokenize="none", force=True)
    return f"{bleu.corpus_score(found, [wanted]).score:.2f}  {bleu.get_signature()}"


def main() -> int:
    """The script; an exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare", help="write the text tokenised and lowercased")
    preparing.add_argument("--data", type=Path, default=HERE / "data", metavar="DIRECTORY", help="Multi30k as it is")
    preparing.add_argument("--output", type=Path, metavar="DIRECTORY", help="(default: DATA/tokenised)")
    scoring = commands.add_parser("score", help="BLEU of a translation, tokenised and lowercased")
    scoring.add_argument("hypothesis", type=Path)
    scoring.add_argument("reference", type=Path)
    scoring.add_argument("--as-is", action="store_true", help="both files are tokenised and lowercased already")
    arguments = parser.parse_args()
    try:
        if arguments.command == "prepare":
            prepare(arguments.data, arguments.output or arguments.data / "tokenised")
        else:
            print(score(arguments.hypothesis, arguments.reference, arguments.as_is))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
