"""Decoding speed from text to text: `Translator`, CTranslate2 and transformers with the same weights."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.measuring import System, SystemProcess, by_name, measure_in_rounds
from seq2seq.data.batching import EncodedSide
from seq2seq.data.epoch_plan import batches_in_order
from seq2seq.data.preparation import TrainingText, train_or_load_tokenizers
from seq2seq.devices import CPU_PRECISIONS, configure_process
from seq2seq.errors import RecipeError
from seq2seq.evaluation.scores import corpus_scores
from seq2seq.inference.load_model import read_model, stored_weights
from seq2seq.model import build_model
from seq2seq.model.transformer import Transformer
from seq2seq.recipe import Recipe, TransformerSection
from seq2seq.storage.checkpoints import resolve_model_path, save_bundle, stored_recipe
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, Tokenizers
from seq2seq.translation.translator import Translator
from seq2seq.translation.worker_processes import TranslatorPool

LENGTH_PENALTY = 1.0


@dataclass(frozen=True)
class Task:
    """Work of every system in a round.

    sentences: number of sentences. batch: sentences per batch; None: each system's default; 1: one by one, as in a
    service that answers single requests. max_length: maximum number of target tokens. every_nth: use only every n-th
    sentence, for a system whose rounds would take too long.
    """

    name: str
    beam_size: int
    sentences: int
    batch: int | None = None
    max_length: int = 64
    every_nth: int = 1

    def select(self, sentences: list[str]) -> list[str]:
        """Return the sentences of this task."""
        return sentences[:self.sentences][::self.every_nth]


def tasks(shape: str, sentences: int, trained: bool) -> list[Task]:
    """Return the tasks for a model shape.

    trained: False: the weights are random. Such a model never ends a sentence, so all translations have maximum length.
    """
    max_length = 64 if trained else 24
    if shape != "small":
        return [Task("beam 4, 32 at a time", 4, min(64, sentences), 32, max_length)]
    return [Task("greedy", 1, sentences, None, max_length), Task("beam 5", 5, sentences, None, max_length),
            Task("greedy, one by one", 1, min(60, sentences), 1, max_length),
            Task("beam 5, one by one", 5, min(60, sentences), 1, max_length)]


def measure(recipe: Recipe, run: Path, model: Path | None, shape: str, sentences: list[str], references: list[str],
            repetitions: int, workers: int) -> list[dict[str, Any]]:
    """Measure sentences a second of each system with `workers` one-thread workers, or one worker if sentences are
    translated one by one. With trained weights, also compute BLEU, and `same`: the share of translations that equal
    those of seq2seq in fp32.

    Raises:
        UserError: `model` is not a model, or its languages differ from the recipe's.
    """
    bundle = trained_bundle(recipe, model) if model else random_bundle(recipe, run)
    rows = []
    for task in tasks(shape, len(sentences), model is not None):
        parallel = 1 if task.batch == 1 else workers
        systems = by_name([
            *(SystemProcess(ours, bundle, precision, parallel, sentences, task) for precision in CPU_PRECISIONS),
            *(SystemProcess(ctranslate2, bundle, run / "ctranslate2", kind, parallel, sentences, task)
              for kind in ("int8", "float32")),
            SystemProcess(transformers, bundle, parallel, sentences, replace(task, every_nth=10))])
        fastest = next(name for name in systems if name.startswith("CTranslate2"))
        measured, texts = measure_in_rounds(systems, fastest, repetitions)
        for system in systems.values():
            system.close()
        for row in measured:
            translations = texts[row["system"]]
            if model:
                expected = texts["seq2seq fp32"][::10 if row["system"].startswith("transformers") else 1]
                row["same"] = sum(map(str.__eq__, translations, expected)) / len(expected)
                if len(translations) == len(references):
                    row["bleu"] = corpus_scores(translations, [references], recipe.languages.target)["bleu"].value
            rows.append({**row, "system": f"{row['system']}, {task.name}"})
    return rows


def trained_bundle(recipe: Recipe, model: Path) -> Path:
    """Return the directory of the bundle of a model: a run's best model, or the bundle itself.

    Raises:
        UserError: `model` is not a model, or its languages differ from the recipe's.
    """
    bundle = resolve_model_path(model)
    trained = stored_recipe(bundle)
    if trained.languages != recipe.languages:
        raise RecipeError(f"{model} translates {trained.languages.source} into {trained.languages.target}, but the "
                          f"benchmark translates {recipe.languages.source} into {recipe.languages.target}. Name a "
                          "model for these languages with --model.")
    return bundle


def random_bundle(recipe: Recipe, run: Path) -> Path:
    """Write a bundle with the recipe's model and random weights, and return its directory."""
    tokenizers = train_or_load_tokenizers(TrainingText.of(recipe), run / "tokenizer")
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    shutil.rmtree(run / "random", ignore_errors=True)                           # of an earlier benchmark
    return save_bundle(run / "random", stored_weights(model), recipe, tokenizers.files(), {})


def transformer(bundle: Path) -> tuple[Transformer, Recipe, Tokenizers]:
    """Return model, recipe and tokenizers of a bundle, for a conversion.

    Raises:
        UserError: the model is not a Transformer.
    """
    model, recipe, tokenizers = read_model(bundle)
    if not isinstance(model, Transformer):
        raise RecipeError(f"{bundle}: model.type is {recipe.model.type}, but the other systems have only transformer.")
    return model, recipe, tokenizers


def ours(bundle: Path, precision: str, workers: int, sentences: list[str], task: Task) -> System:
    """Load a model as `seq2seq translate` does."""
    configure_process(1)
    loaded = (Translator.load(bundle, "cpu", precision, 1) if workers == 1
              else TranslatorPool(bundle, workers, "cpu", precision))
    lines = task.select(sentences)
    options: dict[str, Any] = {
        "beam_size": task.beam_size, "n_best": 1, "length_penalty": LENGTH_PENALTY,
        "length_penalty_form": "power", "max_length_ratio": 1e-9, "max_length_offset": task.max_length,
        "safety_net": False}                                                    # the other systems do not retry

    def translate(_: Any) -> tuple[int, list[str]]:
        translations = loaded.translate_stream(lines, (task.batch or 8192 * workers) // workers or 1, **options)
        return len(lines), [best.text for best, *_ in translations]

    return f"seq2seq {loaded.precision}", translate


def ctranslate2(bundle: Path, directory: Path, kind: str, workers: int, sentences: list[str], task: Task) -> System:
    """Convert a model to CTranslate2.

    CTranslate2's Translator sorts the sentences by length and makes batches itself. It uses one thread per worker.
    """
    import ctranslate2

    from seq2seq.interop.ctranslate2 import convert

    configure_process(1)
    model, recipe, tokenizers = transformer(bundle)
    convert(model, cast(TransformerSection, recipe.model), tokenizers, directory)
    del model
    translator = ctranslate2.Translator(str(directory), device="cpu", compute_type=kind, inter_threads=workers,
                                        intra_threads=1)
    lines = task.select(sentences)

    def translate(_: Any) -> tuple[int, list[str]]:
        texts: list[str] = []
        for begin in range(0, len(lines), task.batch or len(lines)):
            block = lines[begin : begin + (task.batch or len(lines))]
            sources = [tokenizers.source.pieces(ids) for ids in tokenizers.source.encode(block)]
            results = translator.translate_batch(
                sources, beam_size=task.beam_size, length_penalty=LENGTH_PENALTY, max_decoding_length=task.max_length,
                max_batch_size=-(-len(block) // workers) if task.batch else 64)
            texts += tokenizers.target.decode_pieces([result.hypotheses[0] for result in results])
        return len(lines), [text.strip() for text in texts]

    # In int8, CTranslate2 names the type of the other numbers, too: int8_float32.
    return f"CTranslate2 {translator.compute_type.partition('_')[0]}", translate


def transformers(bundle: Path, threads: int, sentences: list[str], task: Task) -> System:
    """Copy a model to a MarianMTModel, in this process with `threads` threads.

    transformers' `generate` gets the batches of seq2seq, which are sorted by length and padded.
    """
    from benchmarks.marian import marian, with_our_weights
    from benchmarks.reference import padded

    configure_process(threads)
    model, recipe, tokenizers = transformer(bundle)
    batch_tokens = recipe.decoding.batch_tokens_or_default
    generator = with_our_weights(marian(recipe.model, tokenizers.target.vocab_size).eval(), model)
    del model
    lines = task.select(sentences)
    options = {"early_stopping": True, "length_penalty": LENGTH_PENALTY} if task.beam_size > 1 else {}

    def translate(_: Any) -> tuple[int, list[str]]:
        sources = EncodedSide.from_lists(tokenizers.source.encode(lines, threads))
        targets: list[list[int]] = [[] for _ in lines]
        batches = [batch[begin : begin + (task.batch or len(batch))]
                   for batch in batches_in_order(sources.lengths, batch_tokens)
                   for begin in range(0, len(batch), task.batch or len(batch))]
        for indices in batches:
            ids, offsets, _ = sources.gather(indices)
            rows, mask = padded(torch.from_numpy(ids), torch.from_numpy(offsets))
            output = generator.generate(input_ids=rows, attention_mask=mask, num_beams=task.beam_size, do_sample=False,
                                        max_new_tokens=task.max_length, **options)
            for index, row in zip(indices, output.tolist(), strict=True):
                targets[index] = [token for token in row if token not in (START_ID, END_ID)]
        return len(lines), [text.strip() for text in tokenizers.target.decode(targets)]

    return "transformers fp32", translate
