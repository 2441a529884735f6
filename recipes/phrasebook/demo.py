"""Run the demo: generate the phrasebook, train a Transformer on it, and translate unseen sentences.

    python recipes/phrasebook/demo.py

If the model has already been trained, the script only translates.
"""

import random
import subprocess
import sys
from pathlib import Path

from seq2seq.cli import main
from seq2seq.translation.translator import Translator

HERE = Path(__file__).resolve().parent
RUN = HERE.parents[1] / "runs" / "phrasebook"
DATA = RUN / "data"
EXAMPLES = 10
"""Number of test sentences whose translations are printed."""


def demo() -> int:
    """Run the demo and return its exit code."""
    if not (DATA / "test.zh").exists():
        say("Generating the phrasebook")
        subprocess.run([sys.executable, str(HERE / "generate.py"), str(DATA), "--alignments"], check=True)
    say("Training a Transformer, and testing it on sentences with new combinations of words")
    code = main(["train", str(HERE / "en_zh.yaml"), "--run-dir", str(RUN)])
    if code:
        return code
    say(f"{EXAMPLES} of the test sentences, each with its translation, and with the reference if it differs")
    sources, references = ((DATA / f"test.{language}").read_text(encoding="utf-8").splitlines()
                           for language in ("en", "zh"))
    indices = sorted(random.Random(1).sample(range(len(sources)), EXAMPLES))
    translations = Translator.load(RUN).translate([sources[index] for index in indices])
    for index, (best, *_) in zip(indices, translations, strict=True):
        print(f"  {sources[index]}\n  {best.text}")
        if best.text != references[index]:
            print(f"  (reference: {references[index]})")
        print()
    say("Translate your own sentences")
    print('    echo "My friend bought two books yesterday." | .venv/bin/seq2seq translate runs/phrasebook\n')
    return 0


def say(title: str) -> None:
    """Print a heading."""
    print(f"\n{title}\n", flush=True)


if __name__ == "__main__":
    sys.exit(demo())
