"""Multi30k as in published results: normalised punctuation, Moses tokenisation, lowercase.

    python recipes/multi30k/tokenised.py prepare                    # recipes/multi30k/data to data/tokenised
    python recipes/multi30k/tokenised.py score OUTPUT REFERENCE.de                  # tokenises both, then scores
    python recipes/multi30k/tokenised.py score --as-is OUTPUT REFERENCE.de          # both are already tokenised

`prepare` writes the training text of recipes/multi30k/en_de_published.yaml. `score` prints BLEU of tokenised,
lowercased text without sacreBLEU's tokenisation, as in publications on this data set. The suffix of the reference's
name is the language. Use --as-is for text that is already tokenised, because a second tokenisation would change it
("man 's" becomes "man ' s"). Requires sacremoses (pip install sacremoses).
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
    """Process each line like Moses' normalize-punctuation.perl, tokenizer.perl -no-escape and lowercase.perl.

    Raises:
        UserError: sacremoses is not installed.
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        raise UserError("Moses tokenisation needs sacremoses: pip install sacremoses") from None
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    return [tokenizer.tokenize(normalizer.normalize(line), return_str=True, escape=False).lower() for line in lines]


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def prepare(data: Path, output: Path) -> None:
    """Write all files of `data` to `output`, tokenised and lowercased.

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
    """Return BLEU and its signature. as_is: True if the files are already tokenised and lowercased.

    Raises:
        UserError: the files are not parallel, or the suffix of the reference's name is not a language.
    """
    from sacrebleu.metrics import BLEU

    language = reference.suffix[1:]
    translations, references = read_lines(hypothesis), read_lines(reference)
    if not as_is:
        if language not in LANGUAGES:
            raise UserError(f"{reference}: the name must end in its language, .{' or .'.join(LANGUAGES)}")
        translations, references = tokenised(translations, language), tokenised(references, language)
    if len(translations) != len(references):
        raise UserError(f"{hypothesis} has {len(translations):,} lines, {reference} {len(references):,}. They must "
                        "match line by line.")
    bleu = BLEU(tokenize="none", force=True)
    return f"{bleu.corpus_score(translations, [references]).score:.2f}  {bleu.get_signature()}"


def main() -> int:
    """Run the script and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare", help="write the text tokenised and lowercased")
    preparing.add_argument("--data", type=Path, default=HERE / "data", metavar="DIRECTORY",
                           help="directory with Multi30k (default: as in the recipes)")
    preparing.add_argument("--output", type=Path, metavar="DIRECTORY", help="output (default: DATA/tokenised)")
    scoring = commands.add_parser("score", help="compute BLEU of tokenised, lowercased text")
    scoring.add_argument("hypothesis", type=Path)
    scoring.add_argument("reference", type=Path)
    scoring.add_argument("--as-is", action="store_true", help="both files are already tokenised and lowercased")
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
