"""Messages about requests, decoding options, prompts, and models that cannot be loaded."""

import functools
import math
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
from bundle_metadata import change_metadata
from catalogue import Catalogue
from random_models import ENGLISH, GERMAN, recipe_text, save_random_model, trained_tokenizers

from seq2seq.cli import main
from seq2seq.devices import choose_precision
from seq2seq.errors import RequestError, UserError
from seq2seq.evaluation.rescoring import rescore
from seq2seq.recipe import DecodingSection
from seq2seq.storage.checkpoints import load_bundle, save_bundle
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.whole_words import Words
from seq2seq.translation.generation import generate
from seq2seq.translation.search_setup import SearchSetup
from seq2seq.translation.translation import Translation
from seq2seq.translation.translator import Translator

CATALOGUE = Catalogue("translation")
RECIPE = recipe_text(
    283, "d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31",
    "beam_size: 6, max_length_ratio: 0.3, max_length_offset: 4")
SPEAKS = """\
name: speaks
languages: {target: en}
data: {train: [{text: train.en}], valid: {text: test.en}, cleaning: {max_pieces: 29}}
tokenizer: {vocab_size: 283}
model: {type: language_model, d_model: 12, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31}
training: {best_metric: loss}
"""
LONG = "Der Hund läuft. " * 11 + "Die Katze schläft."


@functools.cache
def tokenizers(*more: tuple[str, str]):
    return trained_tokenizers(RECIPE, [*more, *zip(GERMAN, ENGLISH, strict=True)])


def model(folder: Path, text: str = RECIPE, name: str = "model") -> Path:
    return save_random_model(folder / name, text, tokenizers(), seed=5, noise=0.1)


def load(path: Path, **options) -> Translator:
    return Translator.load(path, "cpu", "fp32", **options)


# Requests


def add_request(name: str, request: Source, **options) -> None:
    def case(folder):
        try:
            load(model(folder)).translate([request], **options)
        except RequestError as error:
            return f"RequestError: {error}"

    CATALOGUE.add(name, case)


add_request("required phrases of samples", Source("ein Hund", required=("dog",)), sampling=True)
add_request("required phrases of diverse beams", Source("ein Hund", required=("dog",)), diverse_groups=2)
add_request("required phrases of a long line", Source(LONG, required=("dog",)))
add_request("more required pieces than max_length", Source("ein Hund", number=6, required=("the cat runs",)),
            max_length=2)
add_request("a min_length above the positions of the model", Source("ein Hund"), min_length=1000)
add_request("a prefix with a control character", Source("ein Hund", prefix="a\x07dog"))
add_request("a prefix with a forbidden phrase", Source("ein Hund", prefix="a dog"), forbid=["dog"])
add_request("a required phrase with a control character", Source("ein Hund", required=("a\x07b",)))
add_request("a context for a model without context", Source("ein Hund", context=("two",)))


@CATALOGUE
def a_required_phrase_of_unknown_words(folder):
    SearchSetup(DecodingSection(), Words(["Ice", "cream"]), "en").phrases.required_phrase("Dogs", 2)


@CATALOGUE
def a_required_phrase_of_which_nothing_remains(folder):
    text = RECIPE.replace("vocab_size: 283", "vocab_size: 283, normalization: nmt_nfkc")
    SearchSetup(DecodingSection(), trained_tokenizers(text).target, "en").phrases.required_phrase("\u200b", 1)


@CATALOGUE
def half_a_surrogate_pair(folder):
    load(model(folder)).translate(["ein Hund", "\ud800"])


# Options


def add_options(name: str, **options) -> None:
    CATALOGUE.add(name, lambda folder: load(model(folder)).translate(["ein Hund"], **options))


add_options("options of wrong names and values", beam_sise=3, wrong_key=1, beam_size=0, max_length=2.0,
            forbid=["a", 5])
add_options("more translations than hypotheses", n_best=7)
add_options("groups of unequal size", diverse_groups=4)
add_options("sampling with diverse groups", sampling=True, diverse_groups=2)
add_options("sampling with required phrases", sampling=True, require=["dog"])
add_options("diverse groups with required phrases", diverse_groups=2, require=["dog"])
add_options("a temperature without sampling", temperature=0.5)
add_options("a temperature of zero", sampling=True, temperature=0.0)
add_options("more candidates than hypotheses", mbr=7)
add_options("more translations than candidates", mbr=3, n_best=4)
add_options("a min_length above max_length", min_length=5, max_length=4)
add_options("a blank forbidden phrase", forbid=[" "])
add_options("a phrase both required and forbidden", forbid=["A "], require=["a"], ignore_case=True)


def add_tags(name: str, line: str, tag: str, *known: str) -> None:
    def case(folder):
        reader = replace(load(model(folder)).reader, tags=known)
        list(reader.tagged(tag).number([line]))

    CATALOGUE.add(name, case)


add_tags("a tag that is not known", "ein Hund", "<sport>", "<law>", "<news>")
add_tags("a tag for a model without tags", "ein Hund", "<sport>")
add_tags("a line with another tag than that of all lines", "<news> ein Hund", "<law>", "<law>", "<news>")


# Generation and rescoring


def add_prompts(name: str, *prompts: str, **options) -> None:
    CATALOGUE.add(name, lambda folder: list(generate(load(model(folder, SPEAKS)), prompts, **options)))


add_prompts("samples without sampling", "the", samples=2)
add_prompts("no samples", "the", samples=0, sampling=True)
add_prompts("an unknown option of generation", "the", beam_sise=3)
add_prompts("a coverage penalty for a language model", "the", coverage_penalty=0.2)
add_prompts("a prompt that is too long", "a", "x" * 30)


@CATALOGUE
def prompts_for_a_translation_model(folder):
    generate(load(model(folder)), [""])


@CATALOGUE
def lines_for_a_language_model(folder):
    load(model(folder, SPEAKS)).translate(["the"])


def add_rescoring(name: str, *translations: str, lines=("ein",), weight=1.0, models=1, length_penalty=1.0) -> None:
    def case(folder):
        found = [[Translation(text, -1.0, -1.0, len(text)) for text in translations]]
        rescore(lines, found, [(load(model(folder, SPEAKS)), weight)] * models, length_penalty)

    CATALOGUE.add(name, case)


add_rescoring("a translation that is too long for the model", "x" * 40, "y")
add_rescoring("rescoring of other sources", "x", "y", lines=["a", "b"])
add_rescoring("rescoring with a negative length penalty", "x", "y", length_penalty=-1.0)
add_rescoring("rescoring without models", "x", "y", models=0)
add_rescoring("rescoring with a weight that is no number", "x", "y", weight=math.nan)


def add_command(name: str, *arguments: object, text: str = SPEAKS) -> None:
    def case(folder):
        with redirect_stderr(StringIO()) as stderr:
            code = main(["generate", str(model(folder, text)), *map(str, arguments)])
        return f"exit code {code}\n{stderr.getvalue()}"

    CATALOGUE.add(name, case)


add_command("greedy generation with options of sampling", "--greedy", "--samples", 2, "--top-p", 0.9, "--top-k", "3")
add_command("a wrong value of a key", "--top-k", "-1")
add_command("prompts of two kinds", "-", "--prompt", "a")
add_command("a wrong value of an option", "--temperature", 0)


# Loading


@CATALOGUE
def a_model_that_does_not_exist(folder):
    load(folder / "nothing")


def add_recipe(name: str, old: str, new: str) -> None:
    """Add a bundle whose recipe describes another model."""
    def case(folder):
        best = load_bundle(model(folder))
        assert old in best.recipe_text
        text = best.recipe_text.replace(old, new)
        load(save_bundle(folder / "changed", best.weights, text, best.tokenizer_files, {}))

    CATALOGUE.add(name, case)


add_recipe("a bundle of another width", "d_model: 12", "d_model: 14")
add_recipe("a bundle of another depth", "encoder_layers: 1", "encoder_layers: 2")
add_recipe("a bundle of another architecture", "feed_forward: 7", "type: rnn")
add_recipe("a bundle whose recipe is invalid", "num_heads: 2", "num_heads: 300")
add_recipe("a bundle whose recipe has a base", "model: {", "model: {base: ../secret.yaml, ")


@CATALOGUE
def a_damaged_file_of_a_bundle(folder):
    path = model(folder)
    (path / "tokenizer.model").write_bytes(b"damaged")
    load(path)


@CATALOGUE
def a_bundle_without_a_tokenizer(folder):
    best = load_bundle(model(folder))
    load(save_bundle(folder / "changed", best.weights, best.recipe_text, {}, {}))


@CATALOGUE
def nan_weights(folder):
    best = load_bundle(model(folder))
    weights = {name: np.full_like(weight, math.nan) for name, weight in best.weights.items()}
    path = save_bundle(folder / "changed", weights, best.recipe_text, best.tokenizer_files, {})
    load(path).translate(GERMAN)


def add_models(name: str, options) -> None:
    """Add other models that do not fit. options: function of the path of a model of another vocabulary and the path of
    a language model."""
    def case(folder):
        other = save_random_model(folder / "other", RECIPE, tokenizers(("ein Haus", "a house")), seed=1)
        load(model(folder), **options(other, model(folder, SPEAKS, "speaks")))

    CATALOGUE.add(name, case)


add_models("an ensemble of models with different vocabularies", lambda other, speaks: {"ensemble": [other]})
add_models("an ensemble with a language model", lambda other, speaks: {"ensemble": [speaks]})
add_models("fusion with a translation model", lambda other, speaks: {"fusion": other})
add_models("an unknown target language", lambda other, speaks: {"target_language": "xh"})


def add_loading(name: str, **options) -> None:
    def case(folder):
        try:
            Translator.load(model(folder), **options)
        except UserError as error:
            return f"{type(error).__name__}: {error}"

    CATALOGUE.add(name, case)


add_loading("an unknown precision", device="cpu", precision="fp64")
add_loading("an unknown kind of device", device="tpux")
add_loading("no threads", device="cpu", threads=0)
add_loading("more threads than a machine has", device="cpu", threads=10**30)


def add_int8(name: str, **record) -> None:
    """Add a bundle whose metadata has a record of BLEU in int8."""
    def case(folder):
        path = model(folder)
        change_metadata(path, int8=record)
        with redirect_stderr(StringIO()) as told:
            Translator.load(path, "cpu")
        used = choose_precision("reference", "cpu")
        return " ".join(told.getvalue().split()).replace(f"in {used} unless", "in REFERENCE unless")

    CATALOGUE.add(name, case)


add_int8("a model that loses too much in int8", bleu=41.6, reference_bleu=42.0, reference_precision="fp16",
         sentences=1014, signature="nrefs:1")
add_int8("a record of int8 that is incomplete", bleu=41.6)


test_message, test_every_message_belongs_to_a_case = CATALOGUE.tests()
