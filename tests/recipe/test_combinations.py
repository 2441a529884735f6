"""Two features of a recipe can be trained together, or the recipe is refused when it is loaded: by the table of
combinations, or because of the form of a corpus."""

import itertools
import json
from pathlib import Path

import pytest
import toy
from pydantic import ValidationError

from seq2seq.recipe import Recipe, parse_recipe
from seq2seq.recipe.base_section import CombinationError
from seq2seq.recipe.model_section import section_of_type
from seq2seq.recipe.reference_page import all_combinations, combinations_page
from seq2seq.storage.checkpoints import best_bundle
from seq2seq.training.run import train

SMALL = {
    "name": "small", "languages": {"source": "en", "target": "de"}, "tokenizer.vocab_size": "auto",
    "data.train": [{"source": "train.en", "target": "train.de"}],
    "data.valid": {"source": "valid.en", "target": "valid.de"},
    "model.d_model": 16, "model.encoder_layers": 1, "model.decoder_layers": 2, "model.num_heads": 2,
    "training.batch_tokens": 64, "training.max_steps": 1, "training.warmup_steps": 0, "training.threads": 1,
    "training.precision": "fp32", "decoding.beam_size": 2, "decoding.max_length_offset": 1,
    "decoding.max_length_ratio": 1.0, "decoding.safety_net": False,
}
AUGMENTATIONS = ("upper_case", "typos", "tags", "placeholders", "terms")
# Settings of each feature.
FEATURES = {
    "transformer": {"model.type": "transformer"}, "rnn": {"model.type": "rnn"}, "pointer": {"model.type": "pointer"},
    "language model": {"model.type": "language_model"}, "dot": {"model.score": "dot"},
    "additive": {"model.score": "additive"}, "bilinear": {"model.score": "bilinear"},
    "relu": {"model.normalize": "relu"}, "hard": {"model.selection": "hard"},
    "structured": {"model.selection": "structured"}, "window": {"model.window": 2},
    "feed-forward": {"model.feed_forward": 32}, "silu": {"model.activation": "silu"}, "pre-norm": {"model.norm": "pre"},
    "learned positions": {"model.positions": "learned"}, "fairseq": {"model.positions": "fairseq"},
    "relative positions": {"model.positions": "relative"}, "gate": {"model.gated": True},
    "norm type": {"model.norm_type": "rms"}, "no bias": {"model.bias": False}, "head size": {"model.head_size": 12},
    "one input embedding": {"model.tied_embeddings": "inputs"},
    "decoder start": {"model.decoder_start": "</s>"}, "embedding norm": {"model.embedding_norm": True},
    "tied layers": {"model.tied_decoder_layers": True},
    "lstm": {"model.cell": "lstm"}, "input feeding": {"model.input_feeding": True}, "copy": {"model.copy": True},
    "hierarchical": {"model.context": "hierarchical"}, "one embedding": {"model.tied_embeddings": "all"},
    "three embeddings": {"model.tied_embeddings": "none"}, "output bias": {"model.output_bias": True},
    "no dropout": {"model.dropout": 0.0}, "context": {"data.context": 1}, "no context": {"data.context": 0},
    "directions": {"data.train": [{"source": "train.de", "target": "train.en",
                                   "languages": {"source": "de", "target": "en"}}]},
    "tag": {"data.train": [{"source": "train.en", "target": "train.de", "tag": "<x>"}]},
    "translated text": {"data.train": [{"source": "train.en", "translated_by": "run"}]},
    **{key: {f"data.augmentation.{key}": 0.5} for key in AUGMENTATIONS},
    "unigram": {"tokenizer.type": "unigram"}, "bpe": {"tokenizer.type": "bpe"}, "words": {"tokenizer.type": "words"},
    "two vocabularies": {"tokenizer.joint": False}, "subword sampling": {"tokenizer.subword_sampling": 0.1},
    "another tokenizer": {"tokenizer.taken_from": "run"}, "fine-tuning": {"training.start_from": "run"},
    "frozen": {"training.start_from": "run", "training.freeze": ["embeddings"]},
    "accumulation": {"training.accumulation": 2},
    "muon": {"training.optimizer": "muon"}, "label smoothing": {"training.label_smoothing": 0.1},
    "guided alignment": {"training.guided_alignment": 0.05}, "consistency": {"training.consistency": 5.0},
    "no consistency": {"training.consistency": 0.0}, "cutoff": {"training.consistency_cutoff": 0.05},
    "bf16": {"training.precision": "bf16"},
    "moving average": {"training.ema_decay": 0.9}, "coverage": {"decoding.coverage_penalty": 0.1},
    "sampling": {"decoding.sampling": True}, "search": {"decoding.sampling": False},
    "required phrase": {"decoding.require": ["rot"]}, "diverse beams": {"decoding.diverse_groups": 2},
    "temperature": {"decoding.temperature": 0.5}, "top-k": {"decoding.top_k": 3}, "top-p": {"decoding.top_p": 0.5},
    "min-p": {"decoding.min_p": 0.1},
}
# Settings that a feature needs, unless the other feature sets the same key.
NEEDED = {
    "lstm": {"model.type": "rnn"}, "input feeding": {"model.type": "rnn"}, "hierarchical": {"data.context": 1},
    "two vocabularies": {"model.tied_embeddings": "none"},
    "cutoff": {"training.consistency": 3.0},
    **dict.fromkeys(("temperature", "top-k", "top-p", "min-p"), {"decoding.sampling": True}),
}
# Features that are loaded with all others, but not trained with them: variants of a feature that is trained, features
# that are the default, and those that take values from another model.
NOT_TRAINED = {
    "transformer", "dot", "bilinear", "feed-forward", "silu", "pre-norm", "one embedding", "output bias", "no dropout",
    "no context", "no consistency", "upper_case", "placeholders", "unigram", "another tokenizer",
    "fine-tuning", "frozen",
    "label smoothing", "search", "temperature", "top-k", "top-p", "min-p", "three embeddings", "lstm", "tags"}
UNSUITABLE = {("pointer", "translated text")}
"""Pairs that need another model in `translated_by`."""
FORMS_OF_CORPORA = {("pointer", "directions"), ("language model", "directions"), ("language model", "tag"),
                    ("language model", "translated text")}
"""Pairs that the rules about the form of a corpus refuse, not the table."""
IN_MODEL = {("relu", "hard"), ("relu", "structured"), ("hard", "tied layers"), ("structured", "tied layers")}
"""Pairs that a rule about two keys of the section `model` refuses, not the table."""
QUICK = {("rnn", "context"), ("hierarchical", "muon"), ("structured", "words"), ("terms", "subword sampling"),
         ("language model", "moving average"), ("copy", "accumulation")}


def recipe_with(*features: str) -> dict | None:
    """Return the values of a recipe with some features; None if two of them are values of the same key, or if one is a
    key that the type of the other does not have."""
    settings = {key: value for feature in features for key, value in NEEDED.get(feature, {}).items()}
    corpora = list(SMALL["data.train"])
    for feature in features:
        settings |= FEATURES[feature]
        corpora += FEATURES[feature].get("data.train", [])
    counts = [key for feature in features for key in FEATURES[feature] if key != "data.train"]
    if len(set(counts)) < len(counts):
        return None
    recipe: dict = {}
    for key, value in {**SMALL, **settings, "data.train": corpora}.items():
        *sections, name = key.split(".")
        section = recipe
        for step in sections:
            section = section.setdefault(step, {})
        section[name] = value
    known = section_of_type(recipe["model"]).model_fields
    if any(key.startswith("model.") and key.removeprefix("model.") not in known for key in counts):
        return None
    recipe["model"] = {key: value for key, value in recipe["model"].items() if key in known}
    for_type(recipe)
    return recipe


def for_type(recipe: dict) -> None:
    """Change the text of a recipe into that of its type of model."""
    type = recipe["model"].get("type")
    if type == "language_model":
        recipe["languages"] = {"target": "de"}
    if type == "pointer" and "require" in recipe["decoding"]:
        recipe["decoding"]["require"] = ["1"]
    data = recipe["data"]
    changed = []
    for corpus in (*data["train"], data["valid"]):
        sides = {key: value for key, value in corpus.items() if key in ("source", "target")}
        others = {key: value for key, value in corpus.items() if key not in sides}
        if type == "language_model":
            sides = {"text": corpus.get("target", corpus["source"])}
        elif type == "pointer" and "target" in sides:
            sides["target"] = sides["target"].partition(".")[0] + ".positions"
        changed.append(sides | others)
    *data["train"], data["valid"] = changed


PAIRS = [pair for pair in itertools.combinations(FEATURES, 2) if recipe_with(*pair)]


def errors_of(recipe: dict) -> list[dict]:
    """Return pydantic's errors about a recipe."""
    try:
        Recipe.model_validate(recipe)
    except ValidationError as error:
        return error.errors()
    return []


def refused_by_table(recipe: dict) -> set[tuple[str, str, str]]:
    """Return both keys of each combination that refuses a recipe, and the reason."""
    causes = [error.get("ctx", {}).get("error") for error in errors_of(recipe)]
    return {(".".join(cause.key), ".".join(cause.other.key), cause.reason) for cause in causes
            if isinstance(cause, CombinationError)}


def test_each_combination_of_the_table_refuses_a_pair_of_features():
    refused = set().union(*(refused_by_table(recipe_with(*pair)) for pair in PAIRS))
    assert refused == {(each.first.key, each.second.key, each.reason) for each in all_combinations()}


def test_a_single_feature_is_accepted():
    assert {feature: errors for feature in FEATURES if (errors := errors_of(recipe_with(feature)))} == {}


def test_only_the_table_and_the_rules_about_corpora_and_models_refuse_two_features():
    refused = {pair for pair in PAIRS if errors_of(recipe := recipe_with(*pair)) and not refused_by_table(recipe)}
    assert refused == FORMS_OF_CORPORA | IN_MODEL


@pytest.mark.parametrize(("type", "keys"), [
    ("transformer", {"cell": "gru"}), ("rnn", {"feed_forward": 2048}), ("rnn", {"window": None}),
    ("pointer", {"num_heads": 8}), ("pointer", {"copy": False}), ("language_model", {"encoder_layers": 6})], ids=str)
def test_a_key_of_another_type_of_model_is_unknown_even_with_its_default(type, keys):
    recipe = recipe_with({"transformer": "silu", "language_model": "language model"}.get(type, type))
    recipe["model"] |= keys
    error, = errors_of(recipe)
    assert (error["type"], error["loc"]) == ("extra_forbidden", ("model", *keys))


def test_the_page_of_combinations_is_current():
    page = Path(__file__).parents[2] / "docs" / "combinations.md"
    assert page.read_text() == combinations_page(), "write it again with: python -m seq2seq.recipe"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Directory with the toy corpus, its run, and targets for pointers: the positions of the source words, reversed."""
    folder = tmp_path_factory.mktemp("combinations")
    toy.copy_finished_run(folder)
    for split in ("train", "valid"):
        lines = (folder / f"{split}.en").read_text().splitlines()[:20 if split == "train" else 1]
        positions = [" ".join(str(len(line.split()) - index) for index in range(len(line.split()))) for line in lines]
        for suffix, text in (("en", lines), ("positions", positions),
                             ("de", (folder / f"{split}.de").read_text().splitlines()[:len(lines)])):
            (folder / f"{split}.{suffix}").write_text("".join(f"{line}\n" for line in text))
    return folder


@pytest.mark.parametrize("pair", [
    pytest.param(pair, marks=() if pair in QUICK else pytest.mark.slow, id=" + ".join(pair))
    for pair in PAIRS
    if not NOT_TRAINED & set(pair) and pair not in UNSUITABLE and not errors_of(recipe_with(*pair))])
def test_two_features_that_are_not_refused_train(pair, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("seq2seq.devices.has_fast_bf16", lambda device: True)           # else it is emulated
    train(parse_recipe(json.dumps(recipe_with(*pair)), folder / "recipe.yaml"), tmp_path / "run")
    assert (best_bundle(tmp_path / "run") / "model.safetensors").exists()
