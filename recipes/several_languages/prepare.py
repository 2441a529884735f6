"""Write the texts of the model with three languages: English-German, English-Chinese, and a German-Chinese test set.

    python recipes/several_languages/prepare.py GERMAN CHINESE [--output DIRECTORY]

recipes/tatoeba_zh_en/prepare.py writes train, valid and test of Tatoeba to the directories GERMAN and CHINESE. A
German and a Chinese sentence with the same English translation are a pair of the German-Chinese test set if the Chinese
sentence is in the Chinese test set. No sentence of a validation or test set is in any training text.
"""

import argparse
import random
from pathlib import Path

TRAIN_PAIRS = 20_000
SPLITS = ("train", "valid", "test")


def read(directory: Path, split: str, language: str) -> list[tuple[str, str]]:
    """Return the (English, other language) pairs of a split."""
    sides = [(directory / f"{split}.{code}").read_text(encoding="utf-8").split("\n")[:-1] for code in ("en", language)]
    return list(zip(*sides, strict=True))


def write(output: Path, name: str, languages: tuple[str, str], pairs: list[tuple[str, str]]) -> None:
    """Write both sides of the pairs as `name.languages.language`."""
    for side, language in enumerate(languages):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (output / f"{name}.{'_'.join(languages)}.{language}").write_text(text, encoding="utf-8", newline="\n")
    print(f"{name}.{'_'.join(languages)}: {len(pairs):,} pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the texts of the model with three languages.")
    parser.add_argument("german", type=Path, help="directory with English-German pairs")
    parser.add_argument("chinese", type=Path, help="directory with English-Chinese pairs")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data")
    arguments = parser.parse_args()
    german = {split: read(arguments.german, split, "de") for split in SPLITS}
    chinese = {split: read(arguments.chinese, split, "zh") for split in SPLITS}
    translations = dict(pair for split in SPLITS for pair in german[split])
    unseen = [(translations[english], text) for english, text in chinese["test"] if english in translations]
    held_out = {text for texts in (german, chinese) for split in SPLITS[1:] for pair in texts[split] for text in pair}
    held_out.update(source for source, _ in unseen)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for language, texts in (("de", german), ("zh", chinese)):
        usable = [pair for pair in texts["train"] if not held_out.intersection(pair)]
        write(arguments.output, "train", ("en", language), random.Random(1).sample(usable, TRAIN_PAIRS))
    for split in SPLITS[1:]:
        write(arguments.output, split, ("en", "de"), german[split][:1000])
        write(arguments.output, split, ("en", "zh"), chinese[split][:1000])
    write(arguments.output, "test", ("de", "zh"), unseen)


if __name__ == "__main__":
    main()
