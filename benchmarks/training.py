"""Training speed: our step against MarianMTModel and a plain torch.nn.Transformer.

They pad, so they get batches of as many tokens as ours whose sentences are of one length.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.marian import marian
from benchmarks.measuring import Contestant, Run, compete
from benchmarks.reference import PlainTransformer, padded, plain_loss
from seq2seq.data.batching import IGNORE_INDEX, Batch, EncodedCorpus, gather, plan_epoch
from seq2seq.data.preparation import prepare, train_or_load_tokenizers
from seq2seq.devices import configure_process, has_fast_bf16
from seq2seq.recipe import Recipe
from seq2seq.training.trainer import Training

REFERENCE = "transformers fp32"


def measure(recipe: Recipe, run: Path, steps: int, repetitions: int) -> list[dict[str, Any]]:
    """Tokens a second, source and target with `</s>`, without padding. `run` holds tokenizer and prepared text."""
    precisions = ["fp32"] + ["bf16"] * has_fast_bf16(torch.device("cpu"))
    # In two competitions, each with the reference: all systems of the base shape together take 28 GB.
    first = [(f"{name} {precision}", system, (precision,))
             for name, system in (("seq2seq", ours), ("transformers", theirs)) for precision in precisions]
    second = [(REFERENCE, theirs, ("fp32",)), ("torch.nn.Transformer fp32", stock, ()),
              ("transformers fp32, its own batches", theirs, ("fp32", True))]
    rows: dict[str, dict[str, Any]] = {}
    for competition in (first, second):
        contestants = {name: Contestant(system, recipe, run, steps, *options) for name, system, options in competition}
        for row in compete(contestants, REFERENCE, repetitions)[0]:
            rows.setdefault(row["system"], row)
        for contestant in contestants.values():
            contestant.close()
    return list(rows.values())


def ours(recipe: Recipe, run: Path, steps: int, precision: str) -> Run:
    """The trainer's own step: gather, loss, backward, clipping, update."""
    configure_process(recipe.training.threads)
    section = recipe.training.model_copy(update={"precision": precision})
    training = Training(recipe.model_copy(update={"training": section}), run)
    plan, tokens = planned(training.corpus, recipe, steps)

    def round_of_steps(_: Any) -> tuple[int, None]:
        for parts in plan:
            training._step(parts)
        return tokens, None

    return round_of_steps


def theirs(recipe: Recipe, run: Path, steps: int, precision: str, own_batches: bool = False) -> Run:
    """The loop that a user of transformers would write, on batches of one length; bf16 by autocast.

    own_batches: a fixed number of sentences as they come, as its Trainer does by default.
    """
    configure_process(recipe.training.threads)
    corpus, vocab_size = prepared(recipe, run)
    plan, tokens = (fixed_numbers if own_batches else of_one_length)(corpus, recipe, steps)
    torch.manual_seed(recipe.seed)
    model = marian(recipe.model, vocab_size).train()

    def loss(batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            return marian_loss(model, batch, recipe.training.label_smoothing)

    return loop(model, loss, corpus, plan, tokens, recipe)


def stock(recipe: Recipe, run: Path, steps: int) -> Run:
    """torch.nn.Transformer as a student would use it: padded, masks, logits of every position."""
    configure_process(recipe.training.threads)
    corpus, vocab_size = prepared(recipe, run)
    plan, tokens = of_one_length(corpus, recipe, steps)
    torch.manual_seed(recipe.seed)
    model = PlainTransformer(recipe.model, vocab_size, stock=True).train()
    return loop(model, lambda batch: plain_loss(model, batch, recipe.training.label_smoothing), corpus, plan, tokens,
                recipe)


def prepared(recipe: Recipe, run: Path) -> tuple[EncodedCorpus, int]:
    """The corpus that all train on, and the size of its vocabulary."""
    tokenizers = train_or_load_tokenizers(recipe, run / "tokenizer")
    return prepare(recipe, tokenizers, run / "prepared", torch.get_num_threads()).corpus, tokenizers.target.vocab_size


def loop(model: torch.nn.Module, loss: Callable[[Batch], Tensor], corpus: EncodedCorpus, plan: list[list[np.ndarray]],
         tokens: int, recipe: Recipe) -> Run:
    """PyTorch's own training loop with its fused optimizer."""
    section = recipe.training
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=section.betas, weight_decay=0.0, fused=True)

    def round_of_steps(_: Any) -> tuple[int, None]:
        for (part,) in plan:
            loss(gather(corpus, part)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), section.gradient_clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return tokens, None

    return round_of_steps


def fixed_numbers(corpus: EncodedCorpus, recipe: Recipe, steps: int) -> tuple[list[list[np.ndarray]], int]:
    """Steps of as many sentences as the others have on average, in random order; and their tokens."""
    sentences = round(recipe.training.batch_tokens / corpus.target.lengths.mean())
    order = np.random.default_rng(recipe.seed).permutation(len(corpus))[:steps * sentences]
    plan = [[part] for part in np.array_split(order, steps)]
    return plan, tokens_of(corpus, plan)


def planned(corpus: EncodedCorpus, recipe: Recipe, steps: int) -> tuple[list[list[np.ndarray]], int]:
    """The first steps of an epoch, and their tokens."""
    plan = plan_epoch(corpus, recipe.training.batch_tokens, 1, recipe.seed, 0)[:steps]
    return plan, tokens_of(corpus, plan)


def of_one_length(corpus: EncodedCorpus, recipe: Recipe, steps: int) -> tuple[list[list[np.ndarray]], int]:
    """Steps of as many tokens whose sentences are of like length, in random order; and their tokens."""
    lengths, random = corpus.target.lengths, np.random.default_rng(recipe.seed)
    order = np.lexsort((random.permutation(len(corpus)), corpus.source.lengths, lengths))
    step_of = lengths[order].cumsum() // recipe.training.batch_tokens
    whole = np.split(order, np.flatnonzero(np.diff(step_of)) + 1)
    plan = [[whole[number]] for number in random.permutation(len(whole))[:steps]]
    return plan, tokens_of(corpus, plan)


def tokens_of(corpus: EncodedCorpus, plan: list[list[np.ndarray]]) -> int:
    """Source and target tokens of some steps of one part each."""
    return sum(int(side.lengths[part].sum()) for (part,) in plan for side in (corpus.source, corpus.target))


def marian_loss(model: Any, batch: Batch, label_smoothing: float) -> Tensor:
    """The mean over target tokens, padded to the longest sentence."""
    source, mask = padded(batch.source, batch.source_offsets)
    inputs, _ = padded(batch.target_input, batch.target_offsets)
    labels, _ = padded(batch.target_output, batch.target_offsets, IGNORE_INDEX)
    # Padding stands after the sentences, where the causal mask hides it: the decoder needs no mask of its own.
    logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=inputs, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX,
                           label_smoothing=label_smoothing)
