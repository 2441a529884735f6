"""What a training takes by arithmetic: vocabulary, parameters, memory, steps, time and disk."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path

from seq2seq.check.report import Report
from seq2seq.errors import UserError
from seq2seq.recipe import Recipe
from seq2seq.tokenizer import Tokenizers

# Bytes, <unk>, <s> and </s>: what a vocabulary holds besides pieces of text.
RESERVED_PIECES = 256 + 3
# Of the speed of large matrix products: a step has small ones as well, and passes over memory. Multi30k's small model
# reaches two fifths (benchmarks/README.md).
EFFICIENCY = 0.4
# Even without memory, layers are built one by one: a number mistyped should not take hours to be refused.
MOST_LAYERS = 1000


def size_vocabulary(recipe: Recipe, tokenizers: Tokenizers | None, characters: dict[str, set[str]],
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


def size_model(recipe: Recipe, tokenizers: Tokenizers | None, report: Report) -> None:
    """Parameters, memory and machine."""
    import torch

    from seq2seq.machine import choose_device, choose_dtype, describe, settle_process
    from seq2seq.model import build_model
    from seq2seq.restoring import Undrawn

    layers = max(recipe.model.encoder_layers, recipe.model.decoder_layers)
    if layers > MOST_LAYERS:
        report.errors.append(f"model: {layers:,} layers are more than any machine trains. Use fewer.")
        return
    sizes = [tokenizer.vocab_size for tokenizer in (tokenizers.source, tokenizers.target)] if tokenizers else [
        recipe.tokenizer.vocab_size] * 2
    try:
        with torch.device("meta"), Undrawn():                                   # shapes without memory
            model = build_model(recipe.model, *sizes)
    except RuntimeError as error:                                               # the size of a matrix overflows
        report.errors.append(f"model: it is too large for any machine ({str(error).splitlines()[0]}). "
                             "Lower its widths.")
        return
    parameters = sum(parameter.numel() for parameter in model.parameters())
    embeddings = sum(parameter.numel() for name, parameter in model.named_parameters()
                     if "embedding" in name or "positions" in name or name == "output_weight")
    settle_process(recipe.training.threads)
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


def size_training(recipe: Recipe, report: Report) -> None:
    section = recipe.training
    corpora = [corpus for corpus in report.corpora if corpus.role == "train"]
    tokens = {side: round(sum(corpus.weight * corpus.sides[side].tokens for corpus in corpora))
              for side in recipe.data.valid.sides}
    if not sum(corpus.pairs for corpus in corpora):
        report.errors.append("train: no pair is left after cleaning. Check that data.train names the right files, and "
                             "the limits in data.cleaning.")
        return
    if not all(tokens.values()):
        report.warnings.append("train: with these weights an epoch is empty, or hardly ever holds a pair. Raise "
                               "data.train.weight.")
    steps = max(1, math.ceil(list(tokens.values())[-1] / section.batch_tokens))
    report.training = {**{f"{side}_tokens": count for side, count in tokens.items()}, "steps_per_epoch": steps,
                       "max_steps": section.max_steps, "epochs": section.max_steps / steps}
    if not report.model:
        return
    # Forward 2 operations a weight and token, backward twice that; a lookup in a table costs nothing, the output does.
    weights = report.model["parameters"] - report.model["of_embeddings"]
    width = recipe.model.d_model * report.vocabulary["vocab_size"]
    of_target = list(tokens.values())[-1]
    # Each side passes its half of the layers, or nearly so.
    operations = 6 * (weights * sum(tokens.values()) / len(tokens) + width * of_target)
    seconds = operations / (EFFICIENCY * _operations_a_second(report)) / steps
    report.training |= {"seconds_a_step": seconds, "hours": seconds * section.max_steps / 3600}


def _operations_a_second(report: Report) -> float:
    """Of large matrix products, tried for a moment on the device that would train."""
    import torch

    device = torch.device(report.machine["device"])
    dtype = torch.bfloat16 if report.machine["precision"] == "bf16" else torch.float32
    matrix = torch.ones(512, 512, device=device, dtype=dtype)
    matrix @ matrix
    times = 3 if device.type == "cpu" else 300
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        matrix @ matrix
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return times * 2 * 512**3 / (time.perf_counter() - began)


def size_disk(recipe: Recipe, run: Path, report: Report) -> None:
    """What a run leaves on disk, and what is free there."""
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
