"""Preparation of a large text: a seeded synthetic corpus, and the time and memory of `seq2seq prepare` for it.

    python -m benchmarks.large_text PAIRS DIRECTORY [--kills N] [--set KEY=VALUE]

Writes DIRECTORY/text.src.zst, text.tgt.zst and recipe.yaml, prepares them in DIRECTORY/run, and prints time and memory.
With --kills, prepares them once more, killed N times (SIGKILL), and compares the files.

Sentences have 19 words on average (a gamma distribution, as news), the words of a text of 50,000 words with the
frequencies of Zipf's law, and a target has the words of its source in another language, some of them exchanged with
their neighbours. One pair in twenty is a duplicate.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import zstandard

WORDS = 50_000
MEAN_WORDS = 19
BLOCK_PAIRS = 100_000
DUPLICATES = 0.05
RECIPE = """\
name: large
languages: {source: de, target: en}
data:
  train: [{source: text.src.zst, target: text.tgt.zst}]
  valid: {source: valid.src, target: valid.tgt}
  cleaning: {remove_duplicates: true}
tokenizer: {vocab_size: 32000, type: bpe}
model: {base: transformer_tiny}
training: {max_steps: 2}
"""


def vocabulary(seed: int, syllables: str) -> list[str]:
    """Return WORDS different words of one to four syllables, the shortest first, as frequent words are."""
    draw = random.Random(seed)
    parts = [consonant + vowel for consonant in syllables for vowel in "aeiou"]
    words: dict[str, None] = {}
    while len(words) < WORDS:
        syllables_of_word = 1 + (len(words) > 100) + (len(words) > 5000) + (len(words) > 20_000)
        words["".join(draw.choices(parts, k=syllables_of_word)) + draw.choice(["", "n", "s", "t"])] = None
    return list(words)


def block(seed: int, number: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of the sentences of a block, (size,), and the indices of all its words."""
    draw = np.random.default_rng((seed, number))
    lengths = np.maximum(1, draw.gamma(2.5, MEAN_WORDS / 2.5, size).astype(np.int64))
    ranks = np.exp(draw.random(lengths.sum()) * np.log(WORDS)).astype(np.int64) - 1         # Zipf's law, exponent 1
    return lengths, np.minimum(ranks, WORDS - 1)


def write(pairs: int, directory: Path, seed: int = 1) -> None:
    """Write the corpus, a validation set of 100 pairs and the recipe."""
    sides = vocabulary(seed, "bdfgklmnprst"), vocabulary(seed + 1, "bcdfhjlmnprstvwz")
    directory.mkdir(parents=True, exist_ok=True)
    first: list[tuple[str, str]] = []
    with open(directory / "text.src.zst", "wb") as source_file, open(directory / "text.tgt.zst", "wb") as target_file, \
            zstandard.ZstdCompressor(1).stream_writer(source_file) as source, \
            zstandard.ZstdCompressor(1).stream_writer(target_file) as target:
        for number, begin in enumerate(range(0, pairs, BLOCK_PAIRS)):
            size = min(BLOCK_PAIRS, pairs - begin)
            lengths, words = block(seed, number, size)
            exchanged = words.copy()
            exchanged[1:-1:7], exchanged[2::7] = words[2::7][:len(words[1:-1:7])], words[1:-1:7][:len(words[2::7])]
            ends = np.cumsum(lengths).tolist()
            found = []
            texts = [list(map(side.__getitem__, ids.tolist())) for side, ids in zip(sides, (words, exchanged),
                                                                                   strict=True)]
            for start, end in zip([0, *ends], ends, strict=False):
                found.append((" ".join(texts[0][start:end]), " ".join(texts[1][start:end])))
            first = first or found
            if number:
                copies = np.random.default_rng((seed, number, 1)).choice(size, int(size * DUPLICATES), replace=False)
                for row in copies.tolist():
                    found[row] = first[row]
            source.write("".join(f"{pair[0]}\n" for pair in found).encode())
            target.write("".join(f"{pair[1]}\n" for pair in found).encode())
    for index, name in enumerate(("valid.src", "valid.tgt")):
        (directory / name).write_text("".join(f"{pair[index]} .\n" for pair in first[:100]))
    (directory / "recipe.yaml").write_text(RECIPE)


def prepare(directory: Path, run: Path, settings: list[str], seconds: float = float("inf")) -> tuple[bool, float, int]:
    """Run `seq2seq prepare`, and kill it after some seconds. Return (True if it has finished, seconds, peak memory of
    its processes in MB)."""
    began, peak = time.monotonic(), 0
    options = [word for setting in settings for word in ("--set", setting)]
    process = subprocess.Popen([sys.executable, "-m", "seq2seq", "prepare", str(directory / "recipe.yaml"),
                                "--run-dir", str(run), *options])
    while process.poll() is None:
        if time.monotonic() - began > seconds:
            process.send_signal(signal.SIGKILL)
        peak = max(peak, memory_of_tree(process.pid))
        time.sleep(0.5)
    return process.returncode == 0, time.monotonic() - began, peak


def memory_of_tree(root: int) -> int:
    """Return the memory of a process and its children in MB; memory that they share counts once."""
    total = 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if root in (int(path.name), parent):
                pss = next(line for line in (path / "smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
                total += int(pss.split()[1])
    return total // 1024


def checksums(run: Path) -> dict[str, str]:
    """Return the sha256 of each file of the tokenizer and of the prepared text."""
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
            for folder in ("tokenizer", "prepared") for path in sorted((run / folder).rglob("*")) if path.is_file()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", type=int)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    arguments = parser.parse_args()
    directory, settings = arguments.directory, arguments.settings
    if not (directory / "recipe.yaml").exists():
        write(arguments.pairs, directory)
    before = os.times()
    _, seconds, peak = prepare(directory, directory / "run", settings)
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"{arguments.pairs:,} pairs in {seconds:,.0f} s and {processor:,.0f} s of processor time: "
          f"{arguments.pairs / processor:,.0f} pairs a second and core, {peak:,} MB")
    draw, killed = random.Random(1), 0
    while arguments.kills:
        limit = draw.uniform(0.1, 0.4) * seconds if killed < arguments.kills else float("inf")
        finished, needed, peak = prepare(directory, directory / "killed", settings, limit)
        if finished:
            break
        killed += 1
        print(f"killed after {needed:,.0f} s", flush=True)
    if arguments.kills:
        same = checksums(directory / "run") == checksums(directory / "killed")
        print(f"{killed} kills, {peak:,} MB: {'equal to the bit' if same else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
