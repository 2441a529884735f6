"""Installed packages register attention scores and types of models of their own."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import toy
from bundle_metadata import change_metadata
from installed_package import forget, install

from seq2seq.cli import main
from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.errors import CheckpointError, RecipeError, UserError
from seq2seq.inference.engines import native_obstacle
from seq2seq.inference.load_model import read_model
from seq2seq.model import build_model
from seq2seq.model.attention_scores import score_named
from seq2seq.recipe import load_recipe, parse_recipe, validate_model
from seq2seq.storage.averaging import average_checkpoints
from seq2seq.storage.checkpoints import best_bundle, save_bundle, stored_recipe
from seq2seq.training.run import train
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.translator import Translator

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_attention"
PROJECT = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
# A model without any attention or order: each target token depends on the mean of the source's embeddings and on the
# token before it. Its loss is not the cross-entropy alone.
MODEL = '''
from dataclasses import dataclass, replace
from typing import Literal
import torch
from torch import nn
from seq2seq.model.interface import Model
from seq2seq.model.loss import Logits
from seq2seq.recipe import ModelSection


class BagSection(ModelSection):
    type: Literal["bag"] = "bag"
    penalty: float = 0.0
    """Weight of the squares of the hidden states in the loss."""


@dataclass
class State:
    means: torch.Tensor
    attention: None = None

    def select(self, rows):
        return State(self.means[rows.flatten()])


class Bag(Model):
    section = BagSection

    @classmethod
    def build(cls, section, source_vocab_size, target_vocab_size):
        return cls(section.d_model, section.penalty, section.max_positions, source_vocab_size, target_vocab_size)

    def __init__(self, width, penalty, max_positions, sources, targets):
        super().__init__()
        self.penalty, self.max_positions = penalty, max_positions
        self.source, self.target = nn.Embedding(sources, width), nn.Embedding(targets, width)
        self.output = nn.Linear(width, targets)

    def means(self, source, offsets):
        sentence = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff().long())
        embedded = self.source(source)                                          # in bf16, if the training is
        sums = embedded.new_zeros(len(offsets) - 1, embedded.shape[1]).index_add(0, sentence, embedded)
        return sums / offsets.diff()[:, None]

    def hidden(self, batch):
        sentence = torch.repeat_interleave(torch.arange(len(batch.target_offsets) - 1),
                                           batch.target_offsets.diff().long())
        tokens = len(sentence)
        before = self.target(batch.target_input)
        means = self.means(batch.source[:int(batch.source_offsets[-1])], batch.source_offsets)
        return before + torch.cat([means[sentence], means.new_zeros(len(before) - tokens, means.shape[1])])

    def forward(self, batch):
        return Logits(self.hidden(batch), self.output.weight, self.output.bias)

    def loss(self, batch, label_smoothing=0.0):
        loss = super().loss(batch, label_smoothing)
        return replace(loss, total=loss.total + self.penalty * self.hidden(batch).float().square().sum())

    def start(self, source, source_offsets, longest_source, keep_attention=False):
        return State(self.means(source, source_offsets))

    def step(self, last_tokens, state):
        return self.output(self.target(last_tokens) + state.means), state
'''
BAG = "model={type: bag, d_model: 16, dropout: 0.0}"


@pytest.fixture
def own_attention(monkeypatch, tmp_path):
    """The example, as `pip install examples/own_attention` installs it."""
    install(monkeypatch, tmp_path / "site", PROJECT["name"], PROJECT["version"], PROJECT["entry-points"],
            own_attention=(EXAMPLE / "own_attention.py").read_text())
    yield
    monkeypatch.undo()
    forget()


@pytest.fixture
def bag(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path / "site", "bag-of-words", "2.1", {"seq2seq.models": {"bag": "bag_model:Bag"}},
            bag_model=MODEL)
    yield
    monkeypatch.undo()
    forget()


def remove(tmp_path, monkeypatch):
    """Uninstall the package of a fixture."""
    (tmp_path / "site").rename(tmp_path / "elsewhere")
    forget()


def test_the_example_has_at_most_forty_lines():
    files = [(EXAMPLE / name).read_text() for name in ("own_attention.py", "pyproject.toml")]
    assert sum(bool(line.strip()) for text in files for line in text.split("\n")) <= 40


def test_the_score_of_the_example_is_the_distance_of_query_and_key(own_attention):
    torch.manual_seed(1)
    queries, keys = torch.randn(3, 2, 5, 7).double(), torch.randn(3, 2, 4, 7).double()
    found = score_named("distance").formula(queries, keys, None)
    squares = torch.cdist(queries, keys).square()
    expected = -squares / (2 * 7**0.5)
    torch.testing.assert_close(found.softmax(-1), expected.softmax(-1), rtol=1e-9, atol=0)


def test_a_score_of_another_package_trains_and_translates_and_its_bundle_names_the_package(
        own_attention, tmp_path, monkeypatch, capsys):
    toy.train_toy(tmp_path, ["model.score=distance"])
    bundle = best_bundle(tmp_path / "run")
    assert json.loads((bundle / "metadata.json").read_text())["packages"] == {"own-attention": "0.1.0"}
    lines = ["a red dog", "the cat"]
    translated = Translator.load(tmp_path / "run").translate(lines)
    assert "attention scores that this package does not know (model.score: distance)" in capsys.readouterr().err
    moved = bundle.rename(tmp_path / "bundle")
    assert Translator.load(moved).translate(lines) == translated
    remove(tmp_path, monkeypatch)
    with pytest.raises(CheckpointError, match="If you trust their authors: pip install own-attention==0.1.0"):
        Translator.load(moved)
    assert main(["translate", str(moved)]) == 2


def test_the_decoding_step_equals_teacher_forcing_with_a_score_of_another_package(own_attention):
    torch.manual_seed(3)
    section = validate_model({"d_model": 12, "num_heads": 3, "encoder_layers": 1, "decoder_layers": 2,
                              "feed_forward": 8, "score": "distance", "normalize": "relu"})
    model = build_model(section, 11, 11).double().eval()
    source, offsets = torch.tensor([4, 5, 6, 2, 9, 2]), torch.tensor([0, 4, 6], dtype=torch.int32)
    state = model.start(source, offsets, 4)
    steps = []
    for tokens in ([1, 1], [5, 3], [7, 4]):
        logits, state = model.step(torch.tensor(tokens), state)
        steps.append(logits)
    corpus = EncodedCorpus(EncodedSide.from_lists([[4, 5, 6], [9]]), EncodedSide.from_lists([[5, 7], [3, 4]]))
    whole = model(gather(corpus, np.arange(2))).dense().view(2, 3, -1)
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_of_another_package_trains_with_its_own_keys_and_loss_and_translates(bag, tmp_path, capsys, precision):
    toy.train_toy(tmp_path, [BAG, f"training.precision={precision}"])
    plain = read_model(tmp_path / "run")[0]
    translator = Translator.load(tmp_path / "run")
    assert translator.translate(["a red dog"]) and "model.type: bag" in capsys.readouterr().err
    sources, targets = ["a cat", "the dog"], ["eine katze", "der hund"]
    alone = [pair_scores(translator, [pair])[0].log_probability for pair in zip(sources, targets, strict=True)]
    together = [each.log_probability for each in pair_scores(translator, list(zip(sources, targets, strict=True)))]
    assert together == pytest.approx(alone, rel=1e-5)
    train(load_recipe(tmp_path / "recipe.yaml", [BAG, "model.penalty=0.5", f"training.precision={precision}"]),
          tmp_path / "penalty")
    shrunk = read_model(tmp_path / "penalty")[0]
    assert shrunk.target.weight.square().sum() < plain.target.weight.square().sum()
    assert json.loads((best_bundle(tmp_path / "run") / "metadata.json").read_text())["packages"] == {
        "bag-of-words": "2.1"}


@pytest.mark.parametrize("setting", ["training.guided_alignment=0.1", "training.consistency=2", "model.num_heads=2",
                                     "model.penalty=much"])
def test_what_a_model_of_another_package_does_not_have_is_refused(bag, tmp_path, setting):
    toy.write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(toy.RECIPE)
    with pytest.raises(UserError, match=setting.partition("=")[0]):
        train(load_recipe(tmp_path / "recipe.yaml", [BAG, setting]), tmp_path / "run")


def test_a_recipe_can_be_checked_with_a_model_of_another_package(bag, tmp_path, capsys):
    toy.write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(toy.RECIPE)
    assert main(["check", str(tmp_path / "recipe.yaml"), "--set", BAG]) == 0
    assert "bag" in capsys.readouterr().out


def test_names_that_nothing_registers_are_refused_with_those_that_exist(bag, own_attention):
    recipe = "name: x\nlanguages: {source: en, target: de}\ndata: {train: [{source: a, target: b}], "
    recipe += "valid: {source: a, target: b}}\n"
    with pytest.raises(RecipeError, match="model.type: expected .*'language_model' or 'bag'; found 'bags'"):
        parse_recipe(f"{recipe}model: {{type: bags}}", "recipe.yaml")
    with pytest.raises(RecipeError, match="model.score: expected .*'additive' or 'distance'; found 'own_attention:dis"):
        parse_recipe(f"{recipe}model: {{score: 'own_attention:distance'}}", "recipe.yaml")


def test_two_packages_with_one_name_are_refused(bag, tmp_path, monkeypatch):
    install(monkeypatch, tmp_path / "other", "other-bag", "1.0", {"seq2seq.models": {"bag": "bag_model:Bag"}})
    with pytest.raises(UserError, match="bag-of-words and other-bag both register 'bag'"):
        validate_model({"type": "bag"})


def test_a_package_that_cannot_be_imported_is_an_error_of_the_user(tmp_path, monkeypatch):
    install(monkeypatch, tmp_path / "site", "broken", "1.0", {"seq2seq.models": {"broken": "broken_model:Model"}},
            broken_model="import no_such_package")
    with pytest.raises(UserError, match="of the package broken cannot be imported: ModuleNotFoundError"):
        validate_model({"type": "broken"})


def test_a_path_in_a_recipe_is_never_imported(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for keys in ({"type": "evil"}, {"type": "evil:Model"}, {"score": "evil"}, {"score": "evil:score"}):
        with pytest.raises((ValueError, UserError)):
            validate_model(keys)


@pytest.mark.parametrize("packages", [
    ["own-attention"], {"a b": "1"}, {"own-attention": "1; rm"}, {"x": 3.5}, {"": "1"}, {"x": None}, {"x" * 101: "1"},
    {"-rfoo": "1"}])
def test_metadata_with_other_packages_than_names_and_versions_is_refused(tmp_path, packages):
    section = validate_model({"d_model": 8, "num_heads": 1, "encoder_layers": 1, "decoder_layers": 1})
    recipe = parse_recipe("name: x\nlanguages: {source: en, target: de}\ndata: {train: [{source: a, target: b}], "
                          "valid: {source: a, target: b}}\n", "recipe.yaml").model_copy(update={"model": section})
    bundle = save_bundle(tmp_path / "bundle", {}, recipe, {}, {"packages": packages})
    with pytest.raises(CheckpointError, match="packages are not names and versions"):
        stored_recipe(bundle)


def test_an_average_of_checkpoints_names_the_packages_too(bag, tmp_path, monkeypatch):
    toy.train_toy(tmp_path, [BAG])
    average_checkpoints([tmp_path / "run"], tmp_path / "average")
    assert json.loads((tmp_path / "average" / "metadata.json").read_text())["packages"] == {"bag-of-words": "2.1"}
    remove(tmp_path, monkeypatch)
    with pytest.raises(CheckpointError, match="pip install bag-of-words==2.1"):
        stored_recipe(tmp_path / "average")


def test_another_version_of_a_package_is_a_warning(own_attention, tmp_path, capsys):
    toy.train_toy(tmp_path, ["model.score=distance"])
    change_metadata(best_bundle(tmp_path / "run"), packages={"own-attention": "0.0.9"})
    capsys.readouterr()
    for _ in range(2):
        stored_recipe(best_bundle(tmp_path / "run"))
    assert capsys.readouterr().err.count("was made with own-attention 0.0.9; 0.1.0 is installed") == 1


def test_a_bundle_of_a_plain_model_needs_no_package_whatever_its_metadata_says(tmp_path):
    toy.copy_finished_run(tmp_path)
    change_metadata(best_bundle(tmp_path / "run"), packages={"some-package": "1.0"})
    assert Translator.load(tmp_path / "run").translate(["a red dog"])


SUBCLASS = """
from typing import Literal
from seq2seq.model import build_transformer
from seq2seq.model.transformer import Transformer
from seq2seq.recipe import TransformerSection

class MirroredSection(TransformerSection):
    type: Literal["mirrored"] = "mirrored"

class Mirrored(Transformer):
    section = MirroredSection

    @classmethod
    def build(cls, section, source_vocab_size, target_vocab_size):
        model = build_transformer(source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size,
                                  **section.model_dump(exclude={"type", "norm"}))
        model.__class__ = cls
        return model

    def encode(self, source, sentences):
        memory, sentences = super().encode(source, sentences)
        return -3 * memory, sentences
"""


def test_a_model_that_extends_the_transformer_is_never_computed_as_a_plain_one(tmp_path, monkeypatch, capsys):
    install(monkeypatch, tmp_path / "site", "mirrors", "1.0", {"seq2seq.models": {"mirrored": "mirrors:Mirrored"}},
            mirrors=SUBCLASS)
    section = validate_model({"type": "mirrored", "d_model": 8, "num_heads": 1, "feed_forward": 8})
    assert "mirrored" in section.peculiarity and native_obstacle(section, "fp32")
    model = build_model(section, 11, 11)
    assert not model.has_plain_decoder and len(model.cross_attentions) == 6
    monkeypatch.undo()
    forget()


TASKS = """
from typing import ClassVar, Literal
from seq2seq.model.interface import Model
from seq2seq.recipe import ModelSection
from seq2seq.recipe.task import LANGUAGE_MODELLING, POINTING

class Speaking(ModelSection):
    task: ClassVar = LANGUAGE_MODELLING
    type: Literal["speaking"] = "speaking"

class Pointing(ModelSection):
    task: ClassVar = POINTING
    type: Literal["pointing"] = "pointing"

class Speaker(Model):
    section = Speaking

class Finger(Model):
    section = Pointing
"""


@pytest.mark.parametrize(("type", "settings", "key"), [
    ("speaking", ["languages={target: de}", "data.train=[{text: train.de}]", "data.valid={text: valid.de}",
                  "data.test={}", "data.context=2"], "data.context"),
    ("speaking", ["languages={target: de}", "data.train=[{text: train.de}]", "data.valid={text: valid.de}",
                  "data.test={}", "tokenizer.joint=false"], "tokenizer.joint"),
    ("pointing", ["training.label_smoothing=0.1"], "training.label_smoothing"),
    ("pointing", ["tokenizer.type=unigram"], "model.type"), ("pointing", ["training.consistency=1"], "training.consis"),
    ("pointing", ["training.guided_alignment=0.1"], "training.guided_alignment")], ids=str)
def test_what_does_not_work_with_a_task_is_refused_for_models_of_packages_too(tmp_path, monkeypatch, type, settings,
                                                                            key):
    models = {"speaking": "tasks_model:Speaker", "pointing": "tasks_model:Finger"}
    install(monkeypatch, tmp_path / "site", "tasks", "1.0", {"seq2seq.models": models}, tasks_model=TASKS)
    toy.write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(toy.RECIPE)
    with pytest.raises(RecipeError, match=f"{key}.* does not work with "):
        load_recipe(tmp_path / "recipe.yaml", [f"model={{type: {type}}}", *settings])
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize(("group", "text", "told"), [
    ("seq2seq.models", "def thing(): ...", "is not a model"), ("seq2seq.models", "class thing: ...", "is not a model"),
    ("seq2seq.models", "class thing:\n    section = dict", "is not a model"),
    ("seq2seq.models", "import sys\nsys.exit(7)", "cannot be imported: SystemExit"),
    ("seq2seq.attention_scores", "thing = 5", "neither a function of queries and keys nor a Score"),
    ("seq2seq.attention_scores", "def thing(queries, keys): return queries.sum()", "of shape () instead of"),
    ("seq2seq.attention_scores", "def thing(queries, keys): return keys @ queries.transpose(-1, -2)", "instead of"),
], ids=str)
def test_an_entry_point_that_is_something_else_is_an_error_of_the_user(tmp_path, monkeypatch, group, text, told):
    install(monkeypatch, tmp_path / "site", "wrong", "1.0", {group: {"thing": "wrong_thing:thing"}}, wrong_thing=text)
    with pytest.raises(UserError, match=re.escape(told)):
        section = validate_model({"type": "thing"} if group == "seq2seq.models" else {
            "d_model": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "score": "thing"})
        side = EncodedSide.from_lists([[4, 5, 6]])
        build_model(section, 11, 11)(gather(EncodedCorpus(side, EncodedSide.from_lists([[7]])), np.arange(1)))
    monkeypatch.undo()
    forget()


def test_consistency_training_refuses_logits_that_add_to_the_loss(bag, tmp_path):
    toy.write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(toy.RECIPE)
    text = MODEL.replace("class Bag(Model):", "class OwnLogits(Logits):\n    pass\n\n\nclass Bag(Model):")
    text = text.replace("return Logits(", "return OwnLogits(").replace("    def loss(", "    def other_loss(")
    (tmp_path / "site" / "bag_model.py").write_text(text)
    settings = [BAG.replace("0.0", "0.1"), "training.consistency=2"]
    with pytest.raises(UserError, match="training.consistency: this model has a loss of its own"):
        train(load_recipe(tmp_path / "recipe.yaml", settings), tmp_path / "run")


def test_a_weight_without_a_gradient_is_named(bag, tmp_path, monkeypatch):
    toy.write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(toy.RECIPE)
    (tmp_path / "site" / "bag_model.py").write_text(MODEL.replace(
        "self.penalty, self.max", "self.unused = nn.Parameter(torch.zeros(3))\n        self.penalty, self.max"))
    with pytest.raises(UserError, match="the weight unused of the model has no gradient"):
        train(load_recipe(tmp_path / "recipe.yaml", [BAG]), tmp_path / "run")


@pytest.mark.slow
def test_pip_installs_the_example(tmp_path):
    subprocess.run([sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index",
                    "--target", str(tmp_path), str(EXAMPLE)], check=True, capture_output=True)
    program = "from seq2seq.plug_ins import *; print(load_registered(ATTENTION_SCORES, 'distance').__name__)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True,
                          env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[1]}"})
    assert done.stdout == "distance\n"
