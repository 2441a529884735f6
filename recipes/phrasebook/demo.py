"""The demo: generate the phrasebook, train a Transformer on it, translate what it has never seen.

    python recipes/phrasebook/demo.py

A second call finds the trained model and only translates.
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
SHOWN = 10


def demo() -> int:
    """All of it; an exit code."""
    if not (DATA / "test.zh").exists():
        say("Generating the phrasebook")
        subprocess.run([sys.executable, str(HERE / "generate.py"), str(DATA), "--alignments"], check=True)
    say("Training a Transformer on it, and testing it on sentences whose parts never stood together in training")
    code = main(["train", str(HERE / "en_zh.yaml"), "--run-dir", str(RUN)])
    if code:
        return code
    say(f"{SHOWN} of the test sentences; where the reference differs, it is shown")
    sources, references = ((DATA / f"test.{language}").read_text(encoding="utf-8").splitlines()
                           for language in ("en", "zh"))
    chosen = sorted(random.Random(1).sample(range(len(sources)), SHOWN))
    translations = Translator.load(RUN).translate([sources[number] for number in chosen])
    for number, (best, *_) in zip(chosen, translations, strict=True):
        print(f"  {sources[number]}\n  {best.text}")
        if best.text != references[number]:
            print(f"  (reference: {references[number]})")
        print()
    say("Your turn")
    print('    echo "My friend bought two books yesterday." | .venv/bin/seq2seq translate runs/phrasebook\n')
    return 0


def say(title: str) -> None:
    """A heading."""
    print(f"\n{title}\n", flush=True)


if __name__ == "__main__":
    sys.exit(demo())
