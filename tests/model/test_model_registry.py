"""The names in recipes are those of the models and scores that exist, and none stands anywhere else."""

import re
from pathlib import Path

import pytest

import seq2seq
from seq2seq.model import BUILDERS
from seq2seq.model.attention_scores import SCORES
from seq2seq.recipe import model_section

PACKAGE = Path(seq2seq.__file__).parent
# Where a type of model or a kind of attention may be named: where recipes and models register, and in its own file.
REGISTRIES = {"recipe/model_section.py", "model/__init__.py"}


def test_every_type_of_model_has_keys_and_a_builder():
    assert BUILDERS.keys() == model_section.MODEL_SECTIONS.keys()


def test_every_score_of_a_recipe_exists_and_those_without_a_formula_are_dot_products():
    assert SCORES.keys() == set(model_section.SCORES)
    assert {name for name, score in SCORES.items() if score.formula is None} == set(model_section.DOT_PRODUCTS)


def test_no_other_module_asks_for_a_type_of_model_or_a_kind_of_attention():
    names = [*model_section.MODEL_SECTIONS, "hard", "structured", "hierarchical"]
    asks = re.compile("|".join([rf"[\"']({'|'.join(names)})[\"']", r"model\.type\b\s*(==|!=|in\b)",
                                r"isinstance\([^()]*\b(Transformer|RecurrentModel|PointerNetwork|LanguageModel)\b"]))
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")
             if asks.search(path.read_text(encoding="utf-8"))}
    assert {path for path in found - REGISTRIES if not path.startswith("model/variants/")} == set()


def test_a_key_that_kernels_and_exports_do_not_know_is_refused_there(monkeypatch):
    section = model_section.TransformerSection(norm="pre")
    assert section.peculiarity is None
    monkeypatch.setattr(model_section, "KNOWN_TO_ENGINES", model_section.KNOWN_TO_ENGINES - {"norm"})
    assert "model.norm" in section.peculiarity
    assert model_section.TransformerSection(norm="post").peculiarity is None, "its default"


@pytest.mark.parametrize(("key", "value"), [*model_section.PARTS_OF_T5.items(), ("head_size", 64)])
def test_a_part_of_t5_is_no_obstacle_for_kernels_but_for_exports(key, value):
    section = model_section.TransformerSection(**{key: value})
    assert section.peculiarity is None and f"(model.{key})" in section.export_peculiarity
    assert "copies" in model_section.TransformerSection(copy=True, **{key: value}).export_peculiarity
    assert model_section.TransformerSection().export_peculiarity is None
