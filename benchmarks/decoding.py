"""Decoding speed: our Translator against MarianMTModel.generate with the same weights, from text to text in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.marian import marian, padded, with_our_weights
from benchmarks.measuring import Contestant, Run, compete
from seq2seq.batching import EncodedSide, batches_in_order
from seq2seq.checkpoint import load_bundle, resolve_model_path
from seq2seq.errors import RecipeError
from seq2seq.machine import settle_process
from seq2seq.model import build_model
from seq2seq.model.transformer import Transformer
from seq2seq.preparation import train_or_load_tokenizers
from seq2seq.recipe import Recipe, parse_recipe
from seq2seq.tokenizer import END_ID, START_ID
from seq2seq.translator import Translator

LONGEST = 64
"""Target tokens at most, for both and for every sentence; a model with random weights goes so far."""
BEAM_SIZES = {"greedy": 1, "beam 5": 5}


def measure(recipe: Recipe, run: Path, model: Path | None, sentences: list[str],
            repetitions: int) -> list[dict[str, Any]]:
    """Sentences a second; with trained weights also `same`, the share of equal translations.

    Raises:
        UserError: `model` is none, or not of the recipe's languages.
    """
    if model:
        trained = parse_recipe(load_bundle(resolve_model_path(model)).recipe_text, model / "recipe.yaml")
        if trained.languages != recipe.languages:
            raise RecipeError(f"{model} translates {trained.languages.source} into {trained.languages.target}, the "
                              f"sentences are {recipe.languages.source}; give others with --data.")
        recipe = recipe.model_copy(update={"model": trained.model})
    contestants = {name: Contestant(system, recipe, run, model, sentences)
                   for name, system in (("seq2seq", ours), ("transformers", theirs))}
    rows = []
    for search, beam_size in BEAM_SIZES.items():
        measured, texts = compete(contestants, "transformers", repetitions, beam_size)
        same = sum(map(str.__eq__, texts["seq2seq"], texts["transformers"])) / len(sentences)
        # Random weights go on to the longest length, where the two do differ: we end with </s>, they stop.
        agreement = {"same": same} if model else {}
        rows += [{**row, "system": f"{row['system']}, {search}", **agreement} for row in measured]
    for contestant in contestants.values():
        contestant.close()
    return rows


def translator(recipe: Recipe, run: Path, model: Path | None) -> Translator:
    """The trained model, or one of the recipe's size with random weights."""
    if model:
        return Translator.load(model, "cpu", "fp32", recipe.training.threads)
    if recipe.training.threads:
        torch.set_num_threads(recipe.training.threads)
    tokenizers = train_or_load_tokenizers(recipe, run / "tokenizer")
    torch.manual_seed(recipe.seed)
    fresh = build_model(recipe.model, tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    return Translator.from_recipe(fresh.eval(), tokenizers, recipe, torch.device("cpu"))


def ours(recipe: Recipe, run: Path, model: Path | None, sentences: list[str]) -> Run:
    """What `seq2seq translate` does."""
    settle_process(recipe.training.threads)
    loaded = translator(recipe, run, model)

    def translate(beam_size: int) -> tuple[int, list[str]]:
        found = loaded.translate(sentences, beam_size=beam_size, n_best=1, length_penalty=1.0,
                                 length_penalty_form="power", max_length_ratio=1e-9, max_length_offset=LONGEST)
        return len(sentences), [best.text for best, *_ in found]

    return translate


def theirs(recipe: Recipe, run: Path, model: Path | None, sentences: list[str]) -> Run:
    """`generate` on the same batches: alike in length, filled to the longest."""
    loaded = translator(recipe, run, model)
    tokenizers, batch_tokens = loaded.tokenizers, loaded.decoding.batch_tokens
    generator = marian(recipe.model, tokenizers.target.vocab_size).eval()
    with_our_weights(generator, cast(Transformer, loaded.model))
    del loaded

    def translate(beam_size: int) -> tuple[int, list[str]]:
        options = {"early_stopping": True, "length_penalty": 1.0} if beam_size > 1 else {}
        sources = EncodedSide.from_lists(tokenizers.source.encode(sentences, torch.get_num_threads()))
        found: list[list[int]] = [[] for _ in sentences]
        for indices in batches_in_order(sources.lengths, batch_tokens):
            ids, offsets, _ = sources.gather(indices)
            rows, mask = padded(torch.from_numpy(ids), torch.from_numpy(offsets))
            output = generator.generate(input_ids=rows, attention_mask=mask, num_beams=beam_size, do_sample=False,
                                        max_new_tokens=LONGEST, **options)
            for index, row in zip(indices, output.tolist(), strict=True):
                found[index] = [token for token in row if token not in (START_ID, END_ID)]
        return len(sentences), [text.strip() for text in tokenizers.target.decode(found)]

    return translate
