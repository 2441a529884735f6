"""Training speed of seq2seq, MarianMTModel and a plain torch.nn.Transformer.

The other systems pad their batches. To keep padding low, they get batches of sentences with about the same length. The
batches have as many tokens as those of seq2seq.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.marian import marian
from benchmarks.measuring import Run, System, SystemProcess, by_name, measure_in_rounds
from benchmarks.reference import PlainTransformer, padded, plain_loss
from seq2seq.data.batching import IGNORE_INDEX, Batch, EncodedCorpus, gather
from seq2seq.data.epoch_plan import plan_epoch
from seq2seq.data.preparation import TrainingText, prepare, train_or_load_tokenizers
from seq2seq.devices import configure_process, has_fast_bf16
from seq2seq.recipe import Recipe
from seq2seq.training.run import start_training

REFERENCE = "transformers fp32"


def measure(recipe: Recipe, run: Path, steps: int, repetitions: int) -> list[dict[str, Any]]:
    """Measure tokens a second of each system, counting source and target with `</s>` and without padding.

    run: directory for the tokenizer and the prepared text.
    """
    precisions = ["fp32"] + ["bf16"] * has_fast_bf16("cpu")
    # The systems run in two groups, both with the reference. All of them at once would need 28 GB for the base shape.
    def first() -> Iterator[SystemProcess]:
        for system in (ours, theirs):
            for precision in precisions:
                yield SystemProcess(system, recipe, run, steps, precision)

    def second() -> Iterator[SystemProcess]:
        yield SystemProcess(theirs, recipe, run, steps, "fp32")
        yield SystemProcess(stock, recipe, run, steps)
        yield SystemProcess(theirs, recipe, run, steps, "fp32", own_batches=True)

    rows: dict[str, dict[str, Any]] = {}
    for group in (first, second):
        processes = by_name(group())
        for row in measure_in_rounds(processes, REFERENCE, repetitions)[0]:
            rows.setdefault(row["system"], row)
        for process in processes.values():
            process.close()
    return list(rows.values())


def ours(recipe: Recipe, run: Path, steps: int, precision: str) -> System:
    """Return a system that runs the trainer's optimizer steps: gather, loss, backward, clipping, update."""
    configure_process(recipe.training.threads)
    section = recipe.training.model_copy(update={"precision": precision})
    training = start_training(recipe.model_copy(update={"training": section}), run)
    plan, tokens = first_steps(training.prepared.corpus, recipe, steps)

    def round_of_steps(_: Any) -> tuple[int, None]:
        for step in plan:
            training.update(training.prepared.corpus, step)
        return tokens, None

    return f"seq2seq {precision}", round_of_steps


def theirs(recipe: Recipe, run: Path, steps: int, precision: str, own_batches: bool = False) -> System:
    """Return the training loop that a user of transformers would write. If `precision` is bf16, it uses autocast.

    own_batches: True for batches of a fixed number of random sentences, the default of transformers' Trainer. False
        for batches of sentences of similar length.
    """
    configure_process(recipe.training.threads)
    corpus, vocab_size = prepared_corpus(recipe, run)
    plan, tokens = (steps_of_fixed_size if own_batches else steps_of_similar_length)(corpus, recipe, steps)
    torch.manual_seed(recipe.seed)
    model = marian(recipe.model, vocab_size).train()

    def loss(batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            return marian_loss(model, batch, recipe.training.label_smoothing)

    name = f"transformers {precision}{', its own batches' if own_batches else ''}"
    return name, loop(model, loss, corpus, plan, tokens, recipe)


def stock(recipe: Recipe, run: Path, steps: int) -> System:
    """Return a training loop of torch.nn.Transformer with padded batches, masks and logits of every position."""
    configure_process(recipe.training.threads)
    corpus, vocab_size = prepared_corpus(recipe, run)
    plan, tokens = steps_of_similar_length(corpus, recipe, steps)
    torch.manual_seed(recipe.seed)
    model = PlainTransformer(recipe.model, vocab_size, stock=True).train()
    return "torch.nn.Transformer fp32", loop(
        model, lambda batch: plain_loss(model, batch, recipe.training.label_smoothing), corpus, plan, tokens, recipe)


def prepared_corpus(recipe: Recipe, run: Path) -> tuple[EncodedCorpus, int]:
    """Return the training corpus and the size of its vocabulary."""
    text = TrainingText.of(recipe)
    tokenizers = train_or_load_tokenizers(text, run / "tokenizer")
    return prepare(text, tokenizers, run / "prepared", torch.get_num_threads()).corpus, tokenizers.target.vocab_size


def loop(model: torch.nn.Module, loss: Callable[[Batch], Tensor], corpus: EncodedCorpus, plan: list[list[np.ndarray]],
         tokens: int, recipe: Recipe) -> Run:
    """Return a function that runs one round: a plain training loop with PyTorch's fused AdamW."""
    section = recipe.training
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=section.betas, weight_decay=0.0, fused=True)

    def round_of_steps(_: Any) -> tuple[int, None]:
        for (micro_batch,) in plan:
            loss(gather(corpus, micro_batch)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), section.gradient_clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return tokens, None

    return round_of_steps


def steps_of_fixed_size(corpus: EncodedCorpus, recipe: Recipe, steps: int) -> tuple[list[list[np.ndarray]], int]:
    """Return steps of random sentences, and the number of tokens in all steps. Every step has as many sentences as a
    step of the other systems has on average."""
    sentences = round(recipe.training.batch_tokens / corpus.target.lengths.mean())
    order = np.random.default_rng(recipe.seed).permutation(len(corpus))[:steps * sentences]
    plan = [[micro_batch] for micro_batch in np.array_split(order, steps)]
    return plan, count_tokens(corpus, plan)


def first_steps(corpus: EncodedCorpus, recipe: Recipe, steps: int) -> tuple[list[list[np.ndarray]], int]:
    """Return the first steps of an epoch, and the number of tokens in them."""
    plan = list(islice(plan_epoch(corpus, recipe.training.batch_tokens, 1, recipe.seed, 0), steps))
    return plan, count_tokens(corpus, plan)


def steps_of_similar_length(corpus: EncodedCorpus, recipe: Recipe, steps: int) -> tuple[list[list[np.ndarray]], int]:
    """Return steps in random order, each of `batch_tokens` target tokens in sentences of similar length, and the number
    of tokens in all steps."""
    lengths, random = corpus.target.lengths, np.random.default_rng(recipe.seed)
    order = np.lexsort((random.permutation(len(corpus)), corpus.source.lengths, lengths))
    step_of = lengths[order].cumsum() // recipe.training.batch_tokens
    whole = np.split(order, np.flatnonzero(np.diff(step_of)) + 1)
    plan = [[whole[number]] for number in random.permutation(len(whole))[:steps]]
    return plan, count_tokens(corpus, plan)


def count_tokens(corpus: EncodedCorpus, plan: list[list[np.ndarray]]) -> int:
    """Return the number of source and target tokens of steps with one micro-batch each."""
    return sum(int(side.lengths[micro_batch].sum())
               for (micro_batch,) in plan for side in (corpus.source, corpus.target))


def marian_loss(model: Any, batch: Batch, label_smoothing: float) -> Tensor:
    """Return the mean loss over the target tokens of a batch, padded to its longest sentence."""
    source, mask = padded(batch.source, batch.source_offsets)
    inputs, _ = padded(batch.target_input, batch.target_offsets)
    labels, _ = padded(batch.target_output, batch.target_offsets, IGNORE_INDEX)
    # The decoder needs no padding mask: padding follows the sentences, so the causal mask hides it.
    logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=inputs, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX,
                           label_smoothing=label_smoothing)
