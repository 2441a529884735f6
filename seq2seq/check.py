"""What can be said of a recipe and its data before training: faults, sizes and costs. Trains nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from seq2seq import console
from seq2seq.corpus import Counts, Pair, read_pairs
from seq2seq.errors import TokenizerError, UserError
from seq2seq.preparation import blocks, cleaned, taken_tokenizers
from seq2seq.recipe import Corpus, Recipe
from seq2seq.tokenizer import Tokenizers, Words

PERCENTILES = (50, 95, 99, 100)
BLOCK_PAIRS = 8192

# Rough means for vocabularies of 8,000 to 32,000 pieces, used only where no tokenizer has been trained yet.
CHARACTERS_A_PIECE = 4.0
CHARACTERS_A_PIECE_WITHOUT_SPACES = 1.5
# Text with words longer than this on average is written without spaces between words.
LONGEST_MEAN_WORD = 15
# Bytes, <unk>, <s> and </s>: what a vocabulary holds besides pieces of text.
RESERVED_PIECES = 256 + 3
# A few sentences such as "Thank you." stand in train and test of every corpus; more than this share is worth a warning.
TOLERATED_OVERLAP = 0.01


@dataclass
class SideReport:
    """One language of a corpus. characters, words: of a line, by percentile; 100 is the longest line."""

    characters: dict[int, int] = field(default_factory=dict)
    words: dict[int, int] = field(default_factory=dict)
    mean_characters: float = 0.0
    tokens: int = 0
    """Pieces of all lines, and an end for each."""


@dataclass
class CorpusReport:
    """One corpus. role: train, valid or test.<name>. pairs: left after cleaning (of train; others are taken whole).
    sides: source and target, or text alone."""

    role: str
    label: str
    pairs: int = 0
    counts: Counts = field(default_factory=Counts)
    sides: dict[str, SideReport] = field(default_factory=dict)
    weight: float = 1.0
    in_train: int | None = None
    """Of valid and tests: lines whose source, or text, stands in train."""
    in_train_example: int | None = None
    error: str | None = None


@dataclass
class Report:
    """All that `check` finds. errors stop a training; warnings do not."""

    name: str
    corpora: list[CorpusReport]
    tokens_are_exact: bool = False
    vocabulary: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)


def inspect(recipe: Recipe, run: Path) -> Report:
    """Read all corpora and size up the model.

    Args:
        run: its tokenizer, if it has one of this recipe's size, makes the numbers of tokens exact.
    """
    tokenizers = _tokenizers(recipe, run)
    report = Report(recipe.name, [], tokens_are_exact=tokenizers is not None)
    held_out = {"valid": recipe.data.valid, **{f"test.{name}": spec for name, spec in recipe.data.test.items()}}
    readers = [_Reader(role, spec, recipe, tokenizers) for role, spec in held_out.items()]
    sources: dict[str, list[str]] = {}
    for reader in readers:
        sources[reader.report.role] = reader.read_held_out()
    wanted = {source for lines in sources.values() for source in lines if source.strip()}
    found: set[str] = set()
    characters: dict[str, set[str]] = {side: set() for side in recipe.data.valid.sides}
    training = [_Reader("train", spec, recipe, tokenizers) for spec in recipe.data.train]
    for reader in training:
        reader.read_train(wanted, found, characters)
    report.corpora = [reader.report for reader in training + readers]
    report.errors = [f"{corpus.role}: {corpus.error}" for corpus in report.corpora if corpus.error]
    for corpus in report.corpora:
        _look_at(corpus, sources.get(corpus.role), found, report.warnings)
    _size_vocabulary(recipe, tokenizers, characters, report)
    _size_model(recipe, tokenizers, report)
    if not any(corpus.error for corpus in report.corpora if corpus.role == "train"):
        _size_training(recipe, report)
    return report


def _tokenizers(recipe: Recipe, run: Path) -> Tokenizers | None:
    directory = run / "tokenizer"
    try:
        found = Tokenizers.load(directory) if directory.is_dir() else taken_tokenizers(recipe)
    except TokenizerError as error:
        console.warn(f"{error} Tokens are estimated instead.")
        return None
    if found is None or recipe.tokenizer_model is not None:
        return found
    of_words = recipe.tokenizer.type == "words"                                 # these may be fewer, or positions
    if of_words != isinstance(found.source, Words) or not of_words and {
            found.source.vocab_size, found.target.vocab_size} != {recipe.tokenizer.vocab_size}:
        return None                                                             # of another recipe
    return found


class _Reader:
    """Reads one corpus once and fills its report."""

    def __init__(self, role: str, spec: Corpus, recipe: Recipe, tokenizers: Tokenizers | None) -> None:
        self.report = CorpusReport(role, spec.label, weight=spec.weight)
        self.spec, self.recipe, self.tokenizers = spec, recipe, tokenizers
        self.characters: dict[str, Counter[int]] = {side: Counter() for side in spec.sides}
        self.words: dict[str, Counter[int]] = {side: Counter() for side in spec.sides}
        self.tokens = dict.fromkeys(spec.sides, 0)

    def read_held_out(self) -> list[str]:
        """Validation or test pairs, as training takes them: all. Returns their sources, or texts."""
        sources: list[str] = []
        for block in self._blocks(clean_them=False):
            sources += self._sides(block)[0][1]
        return sources

    def read_train(self, wanted: set[str], found: set[str], characters: dict[str, set[str]]) -> None:
        """Training pairs after cleaning. Adds to `found` which of the wanted sources stand there."""
        for block in self._blocks(clean_them=True):
            sides = self._sides(block)
            found |= wanted.intersection(sides[0][1])
            for side, texts in sides:
                characters[side].update(*texts)

    def _sides(self, block: list[Pair]) -> list[tuple[str, list[str]]]:
        """The block's texts, side by side, each with its name."""
        columns = ([source for _, source, _ in block], [target for _, _, target in block])
        return list(zip(self.spec.sides, columns[-len(self.spec.sides):], strict=True))

    def _blocks(self, clean_them: bool) -> Iterator[list[Pair]]:
        try:
            pairs = (cleaned(self.spec, self.recipe, self.report.counts) if clean_them else
                     read_pairs(self.recipe, self.spec, self.report.counts))
            with console.progress(f"reading {self.report.label}", None) as advance:
                for block in blocks(pairs, BLOCK_PAIRS):
                    advance(len(block))
                    kept = self._count(block, clean_them)
                    self.report.pairs += len(kept)
                    yield kept
        except UserError as error:
            self.report.error = str(error)
        for side in self.spec.sides:
            characters, lines = self.characters[side], max(self.report.pairs, 1)
            mean = sum(length * count for length, count in characters.items()) / lines
            tokens = self.tokens[side] if self.tokenizers else self._estimate(side)
            self.report.sides[side] = SideReport(percentiles(characters), percentiles(self.words[side]), mean, tokens)

    def _count(self, block: list[Pair], clean_them: bool) -> list[Pair]:
        """Lengths of a block's pairs; without those that have too many pieces for training."""
        if self.tokenizers:
            of_side = {"source": self.tokenizers.source}
            pieces = {side: [len(ids) for ids in of_side.get(side, self.tokenizers.target).encode(texts)]
                      for side, texts in self._sides(block)}
            limit = self.recipe.data.cleaning.max_pieces
            long = {place for place, lengths in enumerate(zip(*pieces.values(), strict=True))
                    if clean_them and max(lengths) > limit}
            for place in sorted(long):
                self.report.counts.drop("too_many_pieces", block[place][0])
            for side, lengths in pieces.items():
                self.tokens[side] += sum(length + 1 for place, length in enumerate(lengths) if place not in long)
            block = [pair for place, pair in enumerate(block) if place not in long]
        for side, texts in self._sides(block):
            self.characters[side].update(map(len, texts))
            self.words[side].update(len(text.split()) for text in texts)
        return block

    def _estimate(self, side: str) -> int:
        characters = sum(length * count for length, count in self.characters[side].items())
        words = sum(length * count for length, count in self.words[side].items())
        spaceless = characters > LONGEST_MEAN_WORD * words
        a_piece = CHARACTERS_A_PIECE_WITHOUT_SPACES if spaceless else CHARACTERS_A_PIECE
        return round(characters / a_piece) + self.report.pairs


def percentiles(lengths: Counter[int]) -> dict[int, int]:
    """For each of PERCENTILES the smallest length that so many percent of the lines do not exceed."""
    total, result = sum(lengths.values()), {}
    for percent in PERCENTILES if total else ():
        left = math.ceil(total * percent / 100)
        for length in sorted(lengths):
            left -= lengths[length]
            if left <= 0:
                result[percent] = length
                break
    return result


def _look_at(corpus: CorpusReport, sources: Sequence[str] | None, found: set[str], warnings: list[str]) -> None:
    """What is suspicious about a corpus."""
    if corpus.error:
        return
    if sources is None:
        read = corpus.pairs + sum(corpus.counts.dropped.values())
        if corpus.pairs < read / 2:
            warnings.append(f"{corpus.label}: cleaning drops {read - corpus.pairs:,} of {read:,} pairs. "
                            "Look at an example line of each reason, and at data.cleaning.")
        return
    if not sources:
        warnings.append(f"{corpus.role} has no pairs.")
        return
    what = f"{next(iter(corpus.sides))}s"                                        # sources, or texts
    blank = [number for number, source in enumerate(sources, start=1) if not source.strip()]
    if blank:
        remedy = "check that both sides are still parallel" if "target" in corpus.sides else "each counts as its end"
        warnings.append(f"{corpus.role}: {len(blank):,} {what} are empty (line {blank[0]:,}); {remedy}.")
    lines = [number for number, source in enumerate(sources, start=1) if source in found]
    corpus.in_train, corpus.in_train_example = len(lines), lines[0] if lines else None
    if len(lines) > TOLERATED_OVERLAP * len(sources):
        warnings.append(f"{corpus.role}: {len(lines):,} of {len(sources):,} {what} stand in train too (such as line "
                        f"{lines[0]:,}), so its scores flatter the model. Take them out of train.")


def _size_vocabulary(recipe: Recipe, tokenizers: Tokenizers | None, characters: dict[str, set[str]],
                     report: Report) -> None:
    section = recipe.tokenizer
    texts = {"both languages": set().union(*characters.values())} if section.joint and len(characters) > 1 else (
        characters)
    size = tokenizers.target.vocab_size if tokenizers else section.vocab_size
    taken_from = section.taken_from or recipe.training.start_from
    kind = section.type if taken_from is None else f"taken from {taken_from}"
    report.vocabulary = {"type": kind, "vocab_size": size, "joint": section.joint,
                         "trained": tokenizers is not None,
                         "characters": {name: len(found) for name, found in texts.items()}}
    if section.type == "words":
        return
    room = section.vocab_size - RESERVED_PIECES
    for name, found in texts.items():
        if tokenizers is None and section.character_coverage == 1 and len(found) > room:
            report.warnings.append(
                f"the text in {name} has {len(found):,} different characters, a vocabulary of {section.vocab_size:,} "
                f"has room for {room:,}. Raise tokenizer.vocab_size, or write rare characters as bytes by "
                "tokenizer.character_coverage=0.9995.")


def _size_model(recipe: Recipe, tokenizers: Tokenizers | None, report: Report) -> None:
    """Parameters, memory and machine."""
    import torch

    from seq2seq.machine import choose_device, choose_dtype, describe
    from seq2seq.model import build_model

    sizes = [tokenizer.vocab_size for tokenizer in (tokenizers.source, tokenizers.target)] if tokenizers else [
        recipe.tokenizer.vocab_size] * 2
    with torch.device("meta"):                                                  # shapes without memory
        model = build_model(recipe.model, *sizes)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    embeddings = sum(parameter.numel() for name, parameter in model.named_parameters()
                     if "embedding" in name or "positions" in name or name == "output_weight")
    device = choose_device()
    report.machine = {"device": str(device), "processor": describe(device)}
    try:
        dtype = choose_dtype(recipe.training.precision, device)
    except UserError as error:
        report.errors.append(f"training.precision: {error}")
        dtype = torch.float32
    report.machine["precision"] = "bf16" if dtype == torch.bfloat16 else "fp32"
    # Weights, gradients and Adam's two means in fp32; the mean of weights; weights and gradients that compute in bf16.
    bytes_each = 16 + (4 if recipe.training.ema_decay else 0) + (4 if dtype != torch.float32 else 0)
    report.model = {"type": recipe.model.type, "parameters": parameters, "of_embeddings": embeddings,
                    "bytes_of_bundle": 4 * parameters, "bytes_in_training": bytes_each * parameters}


def _size_training(recipe: Recipe, report: Report) -> None:
    section = recipe.training
    corpora = [corpus for corpus in report.corpora if corpus.role == "train"]
    tokens = {side: round(sum(corpus.weight * corpus.sides[side].tokens for corpus in corpora))
              for side in recipe.data.valid.sides}
    if not sum(corpus.pairs for corpus in corpora):
        report.errors.append("train: no pair is left after cleaning. Check that data.train names the right files, and "
                             "the limits in data.cleaning.")
        return
    steps = math.ceil(list(tokens.values())[-1] / section.batch_tokens)
    report.training = {**{f"{side}_tokens": count for side, count in tokens.items()}, "steps_per_epoch": steps,
                       "max_steps": section.max_steps, "epochs": section.max_steps / steps}


def show(report: Report) -> None:
    """Print the report on standard output, for a person."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    out = Console(highlight=False)
    if not out.is_terminal:
        out = Console(highlight=False, width=120)                               # a file has no width to keep to

    # Text from files stands in brackets at times; rich would take those for markup.
    def plain(text: str) -> str:
        return text.replace("[", r"\[")

    def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
        table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, show_header=any(columns))
        for number, column in enumerate(columns):
            table.add_column(column, justify="left" if number < left else "right", overflow="fold")
        for row in rows:
            table.add_row(*map(plain, row))
        out.print(table)

    read = [corpus for corpus in report.corpora if not corpus.error]
    print_table(f"Corpora of {report.name}: 50, 95, 99 and 100 of 100 lines are no longer than this",
                ["corpus", "side", "pairs", "characters 50", "95", "99", "100", "words 50", "95", "99", "100"],
                [row for corpus in read for row in _length_rows(corpus)], left=2)
    training = [corpus for corpus in read if corpus.role == "train"]
    dropped = [[corpus.label, reason, f"{count:,}", f"{corpus.counts.examples[reason]:,}"]
               for corpus in training for reason, count in corpus.counts.dropped.items() if count]
    if dropped:
        print_table("Dropped from train", ["corpus", "reason", "pairs", "such as line"], dropped, left=2)
    else:
        out.print("Cleaning drops nothing from train.")
    for corpus in read:
        repairs = corpus.counts
        if repairs.carriage_returns or repairs.inner_newlines or repairs.byte_order_marks:
            out.print(f"{corpus.role} {corpus.label}: {repairs.summary()}", markup=False, soft_wrap=True)
    compared = [[f"{corpus.role} {corpus.label}", f"{corpus.pairs:,}", f"{corpus.in_train:,}",
                 str(corpus.in_train_example or "")] for corpus in read if corpus.in_train is not None]
    if training and compared:
        what = f"{next(iter(training[0].sides))}s"
        print_table(f"{what.capitalize()} that stand in train too", ["corpus", what, "in train", "such as line"],
                    compared)
    print_table("Cost", ["", ""], list(_cost(report)), left=2)
    for corpus in report.corpora:
        if corpus.error:
            out.print(f"not read: {corpus.role} {corpus.label}", style="red", markup=False)
    for warning in report.warnings:
        out.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    if not report.warnings and not report.errors:
        out.print("Nothing is wrong.")


def _length_rows(corpus: CorpusReport) -> Iterator[list[str]]:
    for side, lengths in corpus.sides.items():
        numbers = [values.get(percent, 0) for values in (lengths.characters, lengths.words) for percent in PERCENTILES]
        first = side == next(iter(corpus.sides))
        yield [f"{corpus.role} {corpus.label}" if first else "", side, f"{corpus.pairs:,}" if first else "",
               *(f"{number:,}" for number in numbers)]


def _cost(report: Report) -> Iterator[tuple[str, str]]:
    """What a training will take, name by name."""
    vocabulary, model, training, machine = report.vocabulary, report.model, report.training, report.machine
    characters = ", ".join(f"{count:,} in {name}" for name, count in vocabulary["characters"].items())
    yield "vocabulary", (f"{vocabulary['vocab_size']:,} pieces ({vocabulary['type']}), "
                         f"{'joint' if vocabulary['joint'] else 'one for each language'}; "
                         f"different characters: {characters}")
    yield "model", (f"{model['parameters']:,} parameters ({model['type']}), {model['of_embeddings']:,} of them in "
                    f"embeddings; a bundle has {_size(model['bytes_of_bundle'])}")
    yield "memory", (f"{_size(model['bytes_in_training'])} for weights, gradients and optimizer; the states between "
                     "layers come on top and grow with training.batch_tokens")
    if training:
        about = "" if report.tokens_are_exact else "about "
        sides = " and ".join(f"{training[key]:,} {side}" for side in ("source", "target", "text")
                             if (key := f"{side}_tokens") in training)
        guessed = "" if report.tokens_are_exact else ", guessed from characters: there is no tokenizer yet"
        yield "tokens", f"{about}{sides} tokens an epoch{guessed}"
        yield "steps", (f"{about}{training['steps_per_epoch']:,} an epoch; {training['max_steps']:,} are "
                        f"{about}{training['epochs']:,.1f} epochs")
    yield "machine", f"{machine['device']} ({machine['processor']}), computing in {machine['precision']}"


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
