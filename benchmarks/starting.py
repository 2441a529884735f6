"""Processor time and wall time of complete commands, each in a new process.

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
from benchmarks.measuring import environment, spread
from seq2seq.errors import UserError

PYTHON = [sys.executable]
SEQ2SEQ = [sys.executable, "-m", "seq2seq"]


@dataclass(frozen=True)
class Times:
    """Times of a process in seconds. processor: user and system time. wall: from start to end."""

    processor: float
    wall: float


def run(command: list[str]) -> Times:
    """Run a command, discard its output, and return its times.

    Raises:
        UserError: the command failed. The message contains its standard error.
    """
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise UserError(f"{' '.join(command)} ended with exit code {process.returncode}:\n"
                            + errors.read().decode(errors="replace"))
    return Times(usage.ru_utime + usage.ru_stime, wall)


def measure(commands: dict[str, list[str]], repetitions: int) -> dict[str, list[Times]]:
    """Run all commands in turn `repetitions` times, after one round that fills the file caches. Return their times."""
    times: dict[str, list[Times]] = {name: [] for name in commands}
    for _ in range(repetitions + 1):
        for name, command in commands.items():
            times[name].append(run(command))
    return {name: rounds[1:] for name, rounds in times.items()}


def main() -> int:
    """Print a Markdown table of the times and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path,
                        help="a run or bundle that translates from German (default: random weights)")
    parser.add_argument("--data", type=Path, default=RECIPES / "multi30k" / "data", metavar="DIRECTORY",
                        help="directory with Multi30k, for a random model's tokenizer (default: as in the recipe)")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N",
                        help="measured rounds, after one warm-up round (default: 5)")
    arguments = parser.parse_args()
    if arguments.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    with tempfile.TemporaryDirectory(prefix="seq2seq-benchmarks-") as directory:
        line = Path(directory) / "line.de"
        line.write_text("Ein Hund läuft über die Straße.\n", encoding="utf-8")
        try:
            model = arguments.model or random_bundle(benchmark_recipe(arguments.data, "small", None), Path(directory))
            # Translations of a random model do not end, so their length is limited.
            one_line = [*SEQ2SEQ, "translate", str(model), str(line), "--max-length", "32"]
            times = measure({
                "python alone": [*PYTHON, "-c", ""], "import torch": [*PYTHON, "-c", "import torch"],
                "seq2seq --help": [*SEQ2SEQ, "--help"], "seq2seq translate --help": [*SEQ2SEQ, "translate", "--help"],
                "seq2seq translate, one line": one_line,
                "the same with --precision fp32": [*one_line, "--precision", "fp32"],
            }, arguments.repetitions)
        except UserError as error:
            print(error, file=sys.stderr)
            return 2
    print("| command | processor, s | wall, s |\n|---|---:|---:|")
    for name, rounds in times.items():
        processor, wall = (("{median:.2f} ({lowest:.2f} … {highest:.2f})".format(**spread(values))) for values in
                           ([one.processor for one in rounds], [one.wall for one in rounds]))
        print(f"| {name} | {processor} | {wall} |")
    print("\n" + ", ".join(f"{key} {value}" for key, value in environment().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
