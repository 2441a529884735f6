"""Estimated cost of a training: vocabulary, parameters, memory, steps and disk space."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from seq2seq.check.results import Report
from seq2seq.data.batching import Batch, EncodedCorpus, EncodedSide
from seq2seq.data.epoch_plan import plan_epoch
from seq2seq.data.preparation import TrainingText, pair_repetitions
from seq2seq.devices import free_memory, kind
from seq2seq.errors import CorpusError, UserError
from seq2seq.model.freezing import EMBEDDINGS
from seq2seq.recipe import Recipe
from seq2seq.recipe.advice import Proposal, advice
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.training.loop import KEPT_TO_RESUME
from seq2seq.training.memory import largest_micro_batch, memory_warning, predict_memory

GPU_MODEL_PARAMETERS = 10_000_000
"""Minimum number of parameters for an estimate of the time on GPUs: smaller models are quick on a CPU, too."""
GPU_FLOPS = 265e12
"""Floating-point operations a second of a training in bf16 on an H100. An H200 reached 325e12: the base model with
908,000 target tokens a second (docs/gpus.md). An H100 computes as fast, but its memory is 30 % slower, which is taken
to cost 18 % of the speed."""
GPU_SECONDS_A_LAYER = 0.55e-3
"""Minimum time per layer of a step on a GPU, however few tokens it has: on an H200, steps of 2,048 target tokens took
6.6 ms with 6 + 6 layers of width 512."""
GPU_SUM_BYTES_A_SECOND = 250e9
"""Bytes of the gradient that eight GPUs of a machine sum per second."""


def estimate_vocabulary(recipe: Recipe, tokenizers: Tokenizers | None, characters: dict[str, set[str]],
                        report: Report) -> None:
    """Add vocabulary sizes and numbers of different characters to the report.

    characters: for each side, the different characters of the training text.
    """
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
                         "characters": {name: len(different) for name, different in texts.items()}}


def estimate_model(recipe: Recipe, report: Report) -> None:
    """Add the number of parameters, and a description of the machine, to the report."""
    import torch

    from seq2seq.devices import choose_device, choose_floating_point, configure_process, describe
    from seq2seq.model import SkipInitialization, build_model

    sizes = report.vocabulary["source_vocab_size"], report.vocabulary["vocab_size"]
    if "auto" in sizes:                                             # the sizes are unknown without training text
        return
    try:
        with torch.device("meta"), SkipInitialization():                                   # weights without storage
            model = build_model(recipe.model, *sizes)
    except RuntimeError as error:                                   # the number of elements exceeds 64 bits
        report.errors.append(f"model: the network is too large for any machine ({str(error).splitlines()[0]}). "
                             "Lower model.d_model, model.feed_forward or tokenizer.vocab_size.")
        return
    parameters = sum(parameter.numel() for parameter in model.parameters())
    embeddings = sum(parameter.numel() for name, parameter in model.named_parameters()
                     if EMBEDDINGS.fullmatch(name))
    configure_process(recipe.training.threads)
    try:
        device = choose_device(recipe.training.device)
    except UserError as error:
        report.errors.append(f"training.device: {error}")
        device = "cpu"
    report.machine = {"device": device, "processor": describe(device)}
    try:
        precision = choose_floating_point(recipe.training.precision, device)
    except UserError as error:
        report.errors.append(f"training.precision: {error}")
        precision = "fp32"
    report.machine["precision"] = precision
    # Each weight takes part in one multiplication for each token that passes through its layer.
    layers = list(model.named_parameters(remove_duplicate=False))
    encoder = sum(weight.numel() for name, weight in layers if name.startswith("encoder."))
    decoder = sum(weight.numel() for name, weight in layers if name.startswith(("decoder.", "layers.")))
    report.model = {"type": recipe.model.type, "parameters": parameters, "of_embeddings": embeddings,
                    "weights_per_source_token": encoder,
                    "weights_per_target_token": decoder + sizes[-1] * recipe.model.d_model,
                    "bytes_of_bundle": 4 * parameters}


def estimate_training(text: TrainingText, lengths: Sequence[Mapping[str, Sequence[np.ndarray]]], report: Report
                      ) -> None:
    """Add the numbers of tokens and optimizer steps of an epoch, and the memory of the steps, to the report.

    Args:
        lengths: for each corpus of `text`, its `CorpusReader.lengths`.
    """
    recipe = text.recipe
    section, sides = recipe.training, recipe.data.valid[0].sides
    pairs = [sum(map(len, corpus[sides[-1]])) for corpus in lengths]
    if not sum(pairs):
        raise CorpusError("train: no pair is left, because all have more pieces than data.cleaning.max_pieces. Raise "
                          "that limit, or split the lines into sentences.")
    seen = pair_repetitions(text, np.repeat(np.arange(len(pairs)), pairs))
    side_lengths = [np.concatenate([chunk for corpus in lengths for chunk in corpus[side]]) for side in sides]
    tokens = {side: round(float(values.sum() if seen is None else values @ seen))
              for side, values in zip(sides, side_lengths, strict=True)}
    corpus = EncodedCorpus(_side_without_ids(side_lengths[0]), _side_without_ids(side_lengths[-1]), seen)
    plan = plan_epoch(corpus, section.batch_tokens, section.accumulation, recipe.seed, epoch=0)
    steps = len(plan)
    report.training = {**{f"{side}_tokens": count for side, count in tokens.items()}, "steps_per_epoch": steps,
                       "max_steps": section.max_steps, "epochs": section.max_steps / max(1, steps)}
    with report.collecting():                                       # `training.freeze` may name what the model lacks
        _estimate_memory(recipe, largest_micro_batch(corpus, plan, recipe.data.cleaning.max_pieces + 1), report)


def _estimate_memory(recipe: Recipe, batch: Batch, report: Report) -> None:
    """Add the predicted memory of the steps to the report, with a warning if it is not free. batch: the largest
    micro-batch."""
    if not report.model:
        return
    sizes = report.vocabulary["source_vocab_size"], report.vocabulary["vocab_size"]
    device, precision = report.machine["device"], report.machine["precision"]
    memory = predict_memory(recipe, sizes, kind(device), precision, batch)
    report.memory = {"total": memory.total, **asdict(memory)}
    free = free_memory(device)
    if free is not None and (warning := memory_warning(recipe, sizes, kind(device), precision, batch, free)):
        report.memory["free"] = free
        report.warnings.append(warning)


def estimate_gpus(recipe: Recipe, report: Report) -> None:
    """Add the estimated time of the training on one and on eight H100 to the report, if this machine has no GPU.

    A weight costs six floating-point operations per token: two forward, four backward. Recurrent models and small ones
    get no estimate.
    """
    model, training, section = report.model, report.training, recipe.training
    if (report.machine["device"] != "cpu" or model["parameters"] < GPU_MODEL_PARAMETERS
            or not recipe.model.is_parallel):
        return
    tokens = {side: training.get(f"{side}_tokens", 0) / training["steps_per_epoch"]
              for side in ("source", "target", "text")}
    passes = 2 if section.consistency else 1
    operations = 6 * passes * (model["weights_per_source_token"] * tokens["source"]
                               + model["weights_per_target_token"] * (tokens["target"] + tokens["text"]))
    layers = sum(recipe.model.layers)

    def hours(gpus: int) -> float:
        summing = 4 * model["parameters"] / GPU_SUM_BYTES_A_SECOND if gpus > 1 else 0
        computing = max(operations / gpus / GPU_FLOPS, GPU_SECONDS_A_LAYER * layers)
        return (computing + summing) * section.max_steps / 3600

    report.estimated = {"operations_a_step": operations, "hours_on_one_h100": hours(1), "hours_on_eight_h100": hours(8)}


def _side_without_ids(lengths: np.ndarray) -> EncodedSide:
    """Return an encoded side that has sentence lengths, which is enough to plan batches; all ids are 0, without memory.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return EncodedSide(np.broadcast_to(np.uint16(0), int(offsets[-1])), offsets)


def estimate_disk(recipe: Recipe, run: Path, report: Report) -> None:
    """Add the disk space that a run needs, and the free disk space, to the report."""
    if not report.model:
        return
    section = recipe.training
    averaged = section.average.count if section.average.kind != "none" else 0
    # The best checkpoints may all be older than the `keep_checkpoints` newest. Two more are kept for a rollback.
    kept = section.keep_checkpoints + averaged if section.average.kind == "best" else max(
        section.keep_checkpoints, averaged)
    kept += min(KEPT_TO_RESUME, section.keep_checkpoints)
    kept += 2 if section.divergence != "stop" else 0
    # A checkpoint has fp32 weights, Adam's two moments and perhaps the moving average. While a checkpoint is saved,
    # one more than `kept` exists.
    checkpoints = (kept + 1) * (12 + (4 if section.ema_decay else 0)) * report.model["parameters"]
    tokens = sum(side.tokens for corpus in report.corpora if corpus.role == "train" for side in corpus.sides.values())
    pairs = sum(corpus.pairs for corpus in report.corpora if corpus.role == "train")
    width = 2 if report.vocabulary["vocab_size"] <= 2**16 else 4
    # With subword sampling or augmentation, the current and the next epoch are stored besides the original corpus.
    epochs = 3 if recipe.resamples_epochs else 1
    # While a bundle is saved, there are three: the new one, the best, and the one that was the best before.
    needed = checkpoints + 3 * report.model["bytes_of_bundle"] + epochs * (width * tokens + 32 * pairs)
    directory = next(path for path in (run.absolute(), *run.absolute().parents) if path.exists())
    free = shutil.disk_usage(directory).free
    report.disk = {"needed": needed, "free": free, "place": str(directory)}
    if needed > free:
        remedy = advice(recipe, ["Free some space", Proposal("lower training.keep_checkpoints",
                                                             "training.keep_checkpoints", 1),
                                 "choose another --run-dir"])
        report.warnings.append(f"the run needs about {needed / 1e9:,.1f} GB of disk space, but {directory} has "
                               f"only {free / 1e9:,.1f} GB free. {remedy}.")
