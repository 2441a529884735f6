"""Cold start: processor time of a command from its start to its end.

    python -m benchmarks.starting --model runs/multi30k_de_en
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.__main__ import RECIPES, benchmark_recipe
from benchmarks.decoding import random_bundle
from benchmarks.measuring import spread, surroundings
from seq2seq.errors import UserError

PYTHON = [sys.executable]
SEQ2SEQ = [sys.executable, "-m", "seq2seq"]


@dataclass(frozen=True)
class Ended:
    """A process that has ended, in seconds. processor: user and system time."""

    processor: float
    wall: float


def started(command: list[str]) -> Ended:
    """Run a command, its output thrown away.

    Raises:
        CalledProcessError: it failed.
    """
    began = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Ended(usage.ru_utime + usage.ru_stime, time.perf_counter() - began)


def measure(commands: dict[str, list[str]], repetitions: int) -> dict[str, list[Ended]]:
    """Rounds in turn, after one that fills the caches."""
    found: dict[str, list[Ended]] = {name: [] for name in commands}
    for _ in range(repetitions + 1):
        for name, command in commands.items():
            found[name].append(started(command))
    return {name: ended[1:] for name, ended in found.items()}


def main() -> int:
    """Print a table in Markdown; an exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a run or a bundle that translates from German (default: random)")
    parser.add_argument("--data", type=Path, default=RECIPES / "multi30k" / "data", metavar="DIRECTORY",
                        help="Multi30k, for the tokenizer of a random model (default: where its recipe looks for it)")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="rounds that count (default: 5)")
    arguments = parser.parse_args()
    if arguments.repetitions < 1:
        parser.error("--repetitions counts from 1")
    with tempfile.TemporaryDirectory(prefix="seq2seq-benchmarks-") as place:
        line = Path(place) / "line.de"
        line.write_text("Ein Hund läuft über die Straße.\n", encoding="utf-8")
        try:
            model = arguments.model or random_bundle(benchmark_recipe(arguments.data, "small", None), Path(place))
        except UserError as error:
            print(error, file=sys.stderr)
            return 2
        # A random model does not end its sentences.
        one_line = [*SEQ2SEQ, "translate", str(model), str(line), "--set", "decoding.max_length=32"]
        found = measure({
            "python alone": [*PYTHON, "-c", ""], "import torch": [*PYTHON, "-c", "import torch"],
            "seq2seq --help": [*SEQ2SEQ, "--help"], "seq2seq translate --help": [*SEQ2SEQ, "translate", "--help"],
            "seq2seq translate, one line": one_line,
            "the same with --precision fp32": [*one_line, "--precision", "fp32"],
        }, arguments.repetitions)
    print("| command | processor, s | wall, s |\n|---|---:|---:|")
    for name, rounds in found.items():
        processor, wall = (("{median:.2f} ({lowest:.2f} … {highest:.2f})".format(**spread(values))) for values in
                           ([ended.processor for ended in rounds], [ended.wall for ended in rounds]))
        print(f"| {name} | {processor} | {wall} |")
    print("\n" + ", ".join(f"{key} {value}" for key, value in surroundings().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
