"""Decoding speed from text to text: our translator against CTranslate2 and transformers with the same weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring import Contestant, Run, compete
from seq2seq.data.batching import EncodedSide, batches_in_order
from seq2seq.data.preparation import train_or_load_tokenizers
from seq2seq.devices import choose_precision, configure_process
from seq2seq.errors import RecipeError
from seq2seq.evaluation.scores import corpus_scores
from seq2seq.model import build_model
from seq2seq.model.load_model import stored_weights
from seq2seq.recipe import Recipe, parse_recipe
from seq2seq.storage.checkpoints import load_bundle, resolve_model_path, save_bundle
from seq2seq.tokenizers.tokenizer import END_ID, START_ID
from seq2seq.translation.translator import Translator
from seq2seq.translation.worker_processes import TranslatorPool

LENGTH_PENALTY = 1.0


@dataclass(frozen=True)
class Task:
    """Work of every system in a round.

    sentences: number of sentences. batch: batch size; None: each system's own choice; 1: as in a service that must
    answer each sentence at once. longest: limit of target tokens. share: use every n-th sentence only, for a system
    whose rounds would take too long.
    """

    name: str
    beam_size: int
    sentences: int
    batch: int | None = None
    longest: int = 64
    share: int = 1

    def chosen(self, sentences: list[str]) -> list[str]:
        """The first of the sentences, or every `share`-th of them."""
        return sentences[:self.sentences][::self.share]


def tasks(shape: str, sentences: int, trained: bool) -> list[Task]:
    """Return the tasks for a model shape. Random weights never end a sentence, so all targets have the same length."""
    longest = 64 if trained else 24
    if shape == "base":
        return [Task("beam 4, 32 at a time", 4, min(64, sentences), 32, longest)]
    return [Task("greedy", 1, sentences, None, longest), Task("beam 5", 5, sentences, None, longest),
            Task("greedy, one by one", 1, min(60, sentences), 1, longest),
            Task("beam 5, one by one", 5, min(60, sentences), 1, longest)]


def measure(recipe: Recipe, run: Path, model: Path | None, shape: str, sentences: list[str], references: list[str],
            repetitions: int, workers: int) -> list[dict[str, Any]]:
    """Sentences a second, `workers` one-thread workers each; one where sentences come one by one. With trained weights
    also BLEU, and `same`, the share of translations equal to ours in fp32.

    Raises:
        UserError: `model` is none, or not of the recipe's languages.
    """
    bundle = trained_bundle(recipe, model) if model else random_bundle(recipe, run)
    precisions = dict.fromkeys([choose_precision("auto", torch.device("cpu")), "int8", "fp32"])
    rows = []
    for task in tasks(shape, len(sentences), model is not None):
        at_once = 1 if task.batch == 1 else workers
        contestants = {f"seq2seq {precision}": Contestant(ours, bundle, precision, at_once, sentences, task)
                       for precision in precisions}
        contestants |= {f"CTranslate2 {kind}": Contestant(ctranslate2, bundle, run / "ctranslate2", kind, at_once,
                                                          sentences, task) for kind in ("int8", "float32")}
        contestants["transformers fp32"] = Contestant(transformers, bundle, at_once, sentences, replace(task, share=10))
        measured, texts = compete(contestants, "CTranslate2 int8", repetitions)
        for contestant in contestants.values():
            contestant.close()
        for row in measured:
            found = texts[row["system"]]
            if model:
                exact = texts["seq2seq fp32"][::10 if row["system"].startswith("transformers") else 1]
                row["same"] = sum(map(str.__eq__, found, exact)) / len(exact)
                if len(found) == len(references):
                    row["bleu"] = corpus_scores(found, [references], recipe.languages.target)["bleu"].value
            rows.append({**row, "system": f"{row['system']}, {task.name}"})
    return rows


def trained_bundle(recipe: Recipe, model: Path) -> Path:
    """The bundle that `model` names. Raises UserError."""
    bundle = load_bundle(resolve_model_path(model))
    trained = parse_recipe(bundle.recipe_text, model / "recipe.yaml")
    if trained.languages != recipe.languages:
        raise RecipeError(f"{model} translates {trained.languages.source} into {trained.languages.target}, the "
                          f"sentences are {recipe.languages.source}; give others with --data.")
    return bundle.directory


def random_bundle(recipe: Recipe, run: Path) -> Path:
    """A model of the recipe's size that has learnt nothing."""
    tokenizers = train_or_load_tokenizers(recipe, run / "tokenizer")
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    save_bundle(run / "random", stored_weights(model), recipe.to_yaml(), tokenizers.files(), {})
    return run / "random"


def ours(bundle: Path, precision: str, workers: int, sentences: list[str], task: Task) -> Run:
    """Text to text as `seq2seq translate` does it."""
    configure_process(1)
    loaded = (Translator.load(bundle, "cpu", precision, 1) if workers == 1
              else TranslatorPool(bundle, workers, "cpu", precision))
    chosen = task.chosen(sentences)
    options = {"beam_size": task.beam_size, "n_best": 1, "length_penalty": LENGTH_PENALTY,
               "length_penalty_form": "power", "max_length_ratio": 1e-9, "max_length_offset": task.longest,
               "safety_net": False}                                             # the others search once

    def translate(_: Any) -> tuple[int, list[str]]:
        found = loaded.translate_stream(chosen, (task.batch or 8192 * workers) // workers or 1, **options)
        return len(chosen), [best.text for best, *_ in found]

    return translate


def ctranslate2(bundle: Path, directory: Path, kind: str, workers: int, sentences: list[str], task: Task) -> Run:
    """Its Translator with one thread a worker, which sorts by length and cuts batches itself."""
    import ctranslate2

    from seq2seq.interop.ctranslate2 import convert

    configure_process(1)
    loaded = Translator.load(bundle, "cpu", "fp32", 1)
    tokenizers, model, recipe = loaded.tokenizers, loaded.model, parse_recipe(load_bundle(bundle).recipe_text, bundle)
    convert(model, recipe.model, tokenizers, directory)
    del loaded, model
    translator = ctranslate2.Translator(str(directory), device="cpu", compute_type=kind, inter_threads=workers,
                                        intra_threads=1)
    chosen = task.chosen(sentences)

    def translate(_: Any) -> tuple[int, list[str]]:
        found: list[str] = []
        for begin in range(0, len(chosen), task.batch or len(chosen)):
            block = chosen[begin : begin + (task.batch or len(chosen))]
            sources = [tokenizers.source.pieces(ids) for ids in tokenizers.source.encode(block)]
            results = translator.translate_batch(
                sources, beam_size=task.beam_size, length_penalty=LENGTH_PENALTY, max_decoding_length=task.longest,
                max_batch_size=-(-len(block) // workers) if task.batch else 64)
            found += tokenizers.target.decode_pieces([result.hypotheses[0] for result in results])
        return len(chosen), [text.strip() for text in found]

    return translate


def transformers(bundle: Path, threads: int, sentences: list[str], task: Task) -> Run:
    """`generate` on the same batches as ours: alike in length, filled to the longest; all threads in one process."""
    from benchmarks.marian import marian, with_our_weights
    from benchmarks.reference import padded

    configure_process(threads)
    loaded = Translator.load(bundle, "cpu", "fp32", threads)
    tokenizers, batch_tokens = loaded.tokenizers, loaded.decoding.batch_tokens
    recipe = parse_recipe(load_bundle(bundle).recipe_text, bundle)
    generator = marian(recipe.model, tokenizers.target.vocab_size).eval()
    with_our_weights(generator, loaded.model)
    del loaded
    chosen = task.chosen(sentences)
    options = {"early_stopping": True, "length_penalty": LENGTH_PENALTY} if task.beam_size > 1 else {}

    def translate(_: Any) -> tuple[int, list[str]]:
        sources = EncodedSide.from_lists(tokenizers.source.encode(chosen, threads))
        found: list[list[int]] = [[] for _ in chosen]
        whole = batches_in_order(sources.lengths, batch_tokens)
        batches = [part[begin : begin + (task.batch or len(part))] for part in whole
                   for begin in range(0, len(part), task.batch or len(part))]
        for indices in batches:
            ids, offsets, _ = sources.gather(indices)
            rows, mask = padded(torch.from_numpy(ids), torch.from_numpy(offsets))
            output = generator.generate(input_ids=rows, attention_mask=mask, num_beams=task.beam_size, do_sample=False,
                                        max_new_tokens=task.longest, **options)
            for index, row in zip(indices, output.tolist(), strict=True):
                found[index] = [token for token in row if token not in (START_ID, END_ID)]
        return len(chosen), [text.strip() for text in tokenizers.target.decode(found)]

    return translate
