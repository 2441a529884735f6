"""Speed of the data pipeline of training: gathering batches and preparing text."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
import torch

from benchmarks.measuring import spread
from seq2seq.data.batching import EncodedCorpus, gather
from seq2seq.data.epoch_plan import plan_epoch
from seq2seq.data.preparation import TrainingText, prepare, train_or_load_tokenizers
from seq2seq.recipe import Recipe

P = ParamSpec("P")


def measure(recipe: Recipe, run: Path, repetitions: int) -> list[dict[str, Any]]:
    """Measure the speed of gathering the batches of an epoch on one core, and of preparing the corpus on all cores.

    The rates are in tokens a second. The ratios are relative to the rate of sentencepiece alone on all cores.

    Raises:
        UserError: the text cannot be read.
    """
    tokenizers = train_or_load_tokenizers(TrainingText.of(recipe), run / "tokenizer")
    text = TrainingText.of(recipe)
    corpus = prepare(text, tokenizers, run / "prepared", torch.get_num_threads()).corpus
    tokens = sum(int(side.offsets[-1]) for side in (corpus.source, corpus.target))
    plan = [micro_batch for step in plan_epoch(corpus, 4096, 1, recipe.seed, 0) for micro_batch in step]
    decoded = [tokenizer.decode(sentences(side)) for tokenizer, side in
             ((tokenizers.source, corpus.source), (tokenizers.target, corpus.target))]
    rates: dict[str, list[float]] = {"gathering batches": [], "preparing text": [], "sentencepiece alone": []}
    seconds = 0.0
    for _ in range(repetitions):
        rates["gathering batches"].append(tokens / timed(gather_all, corpus, plan))
        shutil.rmtree(run / "prepared")
        seconds = timed(prepare, text, tokenizers, run / "prepared", torch.get_num_threads())
        rates["preparing text"].append(tokens / seconds)
        rates["sentencepiece alone"].append(tokens / sum(
            timed(tokenizer.encode, lines, torch.get_num_threads())
            for tokenizer, lines in zip((tokenizers.source, tokenizers.target), decoded, strict=True)))
    alone = np.median(rates["sentencepiece alone"])
    return [{"system": name, "rate": spread(measured), "ratio": spread([rate / alone for rate in measured]),
             "memory": 0, "pairs": len(corpus), "seconds": tokens / spread(measured)["median"]}
            for name, measured in rates.items()]


def gather_all(corpus: EncodedCorpus, plan: list[np.ndarray]) -> None:
    """Gather every batch of an epoch."""
    for micro_batch in plan:
        gather(corpus, micro_batch)


def sentences(side: Any) -> list[list[int]]:
    """Return the ids of each sentence."""
    return [ids.tolist() for ids in np.split(np.asarray(side.ids), side.offsets[1:-1])]


def timed(function: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> float:
    """Return the seconds that one call takes."""
    began = time.perf_counter()
    function(*arguments, **options)
    return time.perf_counter() - began
