"""Computed cost of a training: vocabulary, parameters, memory, steps and disk."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from seq2seq.check.report import Report
from seq2seq.data.batching import EncodedCorpus, EncodedSide, draw_steps
from seq2seq.data.preparation import times_pairs_are_seen
from seq2seq.errors import CorpusError, UserError
from seq2seq.recipe import Recipe
from seq2seq.tokenizers.tokenizer import Tokenizers

# Even without memory, layers are built one by one: a number mistyped should not take hours to be refused.
MOST_LAYERS = 1000


def size_vocabulary(recipe: Recipe, tokenizers: Tokenizers | None, characters: dict[str, set[str]],
                    report: Report) -> None:
    section = recipe.tokenizer
    texts = {"both languages": set().union(*characters.values())} if section.joint and len(characters) > 1 else (
        characters)
    taken_from = section.taken_from or recipe.training.start_from
    kind = section.type if taken_from is None else f"taken from {taken_from}"
    report.vocabulary = {"type": kind, "vocab_size": tokenizers.target.vocab_size if tokenizers else section.vocab_size,
                         "source_vocab_size": tokenizers.source.vocab_size if tokenizers else section.vocab_size,
                         "joint": tokenizers.joint if tokenizers else section.joint,
                         "chosen": taken_from is None and section.vocab_size == "auto",
                         "trained": tokenizers is not None,
                         "characters": {name: len(found) for name, found in texts.items()}}


def size_model(recipe: Recipe, report: Report) -> None:
    """Parameters, memory and machine."""
    import torch

    from seq2seq.devices import choose_device, choose_dtype, configure_process, describe
    from seq2seq.model import build_model
    from seq2seq.model.load_model import SkipInitialization

    layers = max(recipe.model.encoder_layers, recipe.model.decoder_layers)
    if layers > MOST_LAYERS:
        report.errors.append(f"model: {layers:,} layers are more than any machine trains. Use fewer.")
        return
    sizes = report.vocabulary["source_vocab_size"], report.vocabulary["vocab_size"]
    if "auto" in sizes:                                                         # no text has shown yet what suits it
        return
    try:
        with torch.device("meta"), SkipInitialization():                                   # shapes without memory
            model = build_model(recipe.model, *sizes)
    except RuntimeError as error:                                               # the size of a matrix overflows
        report.errors.append(f"model: it is too large for any machine ({str(error).splitlines()[0]}). "
                             "Lower its widths.")
        return
    parameters = sum(parameter.numel() for parameter in model.parameters())
    embeddings = sum(parameter.numel() for name, parameter in model.named_parameters()
                     if "embedding" in name or "positions" in name or name == "output_weight")
    configure_process(recipe.training.threads)
    try:
        device = choose_device(recipe.training.device)
    except UserError as error:
        report.errors.append(f"training.device: {error}")
        device = torch.device("cpu")
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


def size_training(recipe: Recipe, lengths: Sequence[Mapping[str, Sequence[np.ndarray]]], report: Report) -> None:
    """Tokens and optimizer steps of an epoch.

    Args:
        lengths: of each corpus of `data.train`, by side, the pieces of its pairs in any number of arrays.
    Raises:
        CorpusError: no pair is left, or the weights allow no epoch.
    """
    section, sides = recipe.training, recipe.data.valid.sides
    pairs = [sum(map(len, corpus[sides[-1]])) for corpus in lengths]
    if not sum(pairs):
        raise CorpusError("train: no pair is left: all have more pieces than data.cleaning.max_pieces allows.")
    seen = times_pairs_are_seen(recipe, np.repeat(np.arange(len(pairs)), pairs))
    of_sides = [np.concatenate([block for corpus in lengths for block in corpus[side]]) for side in sides]
    tokens = {side: round(float(found.sum() if seen is None else found @ seen))
              for side, found in zip(sides, of_sides, strict=True)}
    corpus = EncodedCorpus(_lengths_alone(of_sides[0]), _lengths_alone(of_sides[-1]), seen)
    steps = sum(1 for _ in draw_steps(corpus, section.batch_tokens, recipe.seed, 0))
    report.training = {**{f"{side}_tokens": count for side, count in tokens.items()}, "steps_per_epoch": steps,
                       "max_steps": section.max_steps, "epochs": section.max_steps / max(1, steps)}


def _lengths_alone(lengths: np.ndarray) -> EncodedSide:
    """Sentences of which only the lengths are known."""
    return EncodedSide(np.zeros(0, np.uint16), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def size_disk(recipe: Recipe, run: Path, report: Report) -> None:
    """Fill in the disk space that a run needs, and the free space."""
    if not report.model:
        return
    section = recipe.training
    kept = max(section.keep_checkpoints, section.average.count if section.average.kind != "none" else 0)
    # Weights and Adam's two means, perhaps the mean of weights; one more while it is written; the best bundle.
    checkpoints = (kept + 1) * (12 + (4 if section.ema_decay else 0)) * report.model["parameters"]
    tokens = sum(side.tokens for corpus in report.corpora if corpus.role == "train" for side in corpus.sides.values())
    pairs = sum(corpus.pairs for corpus in report.corpora if corpus.role == "train")
    width = 2 if report.vocabulary["vocab_size"] <= 2**16 else 4
    epochs = 3 if recipe.tokenizer.subword_sampling else 1                      # this one, the next, and as it is cut
    needed = checkpoints + 2 * report.model["bytes_of_bundle"] + epochs * (width * tokens + 32 * pairs)
    place = next(path for path in (run.absolute(), *run.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    report.disk = {"needed": needed, "free": free, "place": str(place)}
    if needed > free:
        report.warnings.append(f"the run needs about {needed / 1e9:,.1f} GB, {place} has {free / 1e9:,.1f} GB. Make "
                               "room, lower training.keep_checkpoints, or choose another --run-dir.")
