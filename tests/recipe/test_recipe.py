"""Tests of recipes: accepted values, and that a saved recipe loads as the same recipe."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_recipe import RECIPE, write_small_recipe

from seq2seq.errors import RecipeError
from seq2seq.recipe import (
    Corpus,
    ModelSection,
    Recipe,
    TrainingSection,
    differences,
    load_recipe,
    loading,
    parse_recipe,
    recipe_reference,
    recipe_schema,
)
from seq2seq.recipe.base_section import describe_keys
from seq2seq.recipe.messages import section_at, section_of, walk_fields
from seq2seq.recipe.model_section import MODEL_SECTIONS
from seq2seq.recipe.model_sizes import model_sizes
from seq2seq.recipe.yaml_document import read_yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture
def directory(tmp_path, monkeypatch) -> Path:
    """The working directory, with a correct recipe.yaml and its data."""
    write_small_recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Reading


def test_a_minimal_recipe_gets_the_defaults_of_the_schema(directory):
    recipe = load_recipe("recipe.yaml")
    assert recipe.training == TrainingSection()
    assert recipe.training.betas == (0.9, 0.98)
    assert recipe.data.train[0].form == "files"
    assert recipe.directory == directory


def test_the_size_of_a_vocabulary_is_a_number_or_auto_and_auto_by_default(directory):
    assert load_recipe("recipe.yaml").tokenizer.vocab_size == "auto"
    assert load_recipe("recipe.yaml", ["tokenizer.vocab_size=8000"]).tokenizer.vocab_size == 8000


def test_no_is_norwegian_and_1e_4_is_a_number(directory):
    text = RECIPE.replace("target: en}\ndata", "target: no}\ndata") + "training: {learning_rate: 1e-4, epsilon: 2e-3}\n"
    recipe = parse_recipe(text, "recipe.yaml")
    assert recipe.languages.target == "no"
    assert recipe.training.learning_rate == 1e-4
    assert recipe.training.epsilon == 2e-3


def test_a_date_makes_a_name_and_a_number_the_name_of_a_test(directory):
    text = RECIPE.replace("name: small", "name: 2026-11-20").replace("flickr:", "2016:")
    recipe = parse_recipe(text, "recipe.yaml")
    assert recipe.name == "2026-11-20"
    assert list(recipe.data.test) == ["2016"]
    assert parse_recipe(recipe.to_yaml(), "recipe.yaml") == recipe


def test_an_integer_is_accepted_for_a_float(directory):
    recipe = load_recipe("recipe.yaml", ["training.gradient_clip=0", "training.betas=[0, 0.5]"])
    assert isinstance(recipe.training.gradient_clip, float)
    assert recipe.training.betas == (0.0, 0.5)


def choices_in(section, prefix: str) -> list[str]:
    """Return KEY=VALUE for every value of every key of a section with a fixed set of values."""
    found = []
    for name, schema in section.model_json_schema()["properties"].items():
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        if schema.get("type") == "boolean" and not prefix.startswith("data."):
            values = ["true", "false"]
        found += [f"{prefix}{name}={value}" for value in values]
    return found


def choices() -> list[tuple[str, str]]:
    """Return (type of model, KEY=VALUE) for every value of every key with a fixed set of values."""
    sections = {prefix: section_at(tuple(prefix.split(".")[:-1])) for key, _ in walk_fields()
                if not (prefix := f"{key.rpartition('.')[0]}.".lstrip(".")).startswith("model.")}
    found = [("transformer", choice) for prefix, section in sections.items() for choice in choices_in(section, prefix)]
    return found + [(type, choice) for type, section in MODEL_SECTIONS.items() for choice in
                    choices_in(section, "model.")]


OF_A_LANGUAGE_MODEL = ["languages={target: en}", "data={train: [{text: data/train.en}], valid: {text: data/val.en}}"]
# Other settings that a choice requires.
NEEDED = {
    "tokenizer.joint=false": ["model.tied_embeddings=none"],
    "model.context=hierarchical": ["data.context=1"],
    "training.best_metric=exact": ["metrics=[bleu, exact]"],
}


def test_choices_are_those_of_all_types_of_model():
    assert {("rnn", "model.cell=lstm"), ("pointer", "model.cell=gru"), ("language_model", "model.norm=pre"),
            ("transformer", "model.selection=hard"), ("transformer", "training.optimizer=muon")} <= set(choices())
    assert "model.cell" in dict(walk_fields())


@pytest.mark.parametrize(("type", "setting"), choices())
def test_every_choice_is_accepted(directory, type, setting):
    of_type = OF_A_LANGUAGE_MODEL if type == "language_model" else []
    recipe = load_recipe("recipe.yaml", [f"model.type={type}", setting, *of_type, *NEEDED.get(setting, [])])
    key, _, value = setting.partition("=")
    stored = recipe
    for step in key.split("."):
        stored = getattr(stored, step)
    assert str(stored).lower() == value


@pytest.mark.parametrize(
    ("corpus", "form", "columns"),
    [
        ({"source": "a.de", "target": "a.en.gz"}, "files", None),
        ({"file": "a.tsv"}, "table", (1, 2)),
        ({"file": "a.tsv.gz", "source": 3, "target": 5}, "table", (3, 5)),
        ({"file": "a.tsv", "header": True, "source": "x", "target": "y"}, "table", ("x", "y")),
        ({"file": "a.csv"}, "table", (1, 2)),
        ({"file": "a.csv.zst", "header": True, "source": "x", "target": "y"}, "table", ("x", "y")),
        ({"file": "a.jsonl.gz", "source": "x", "target": "y"}, "table", ("x", "y")),
        ({"file": "a.parquet", "source": "x", "target": "y"}, "table", ("x", "y")),
        ({"hub": "wmt/wmt14", "config": "de-en", "split": "test", "source": "de", "target": "en"}, "hub", ("de", "en")),
    ],
)
def test_a_corpus_has_three_forms(corpus, form, columns):
    read = Corpus.model_validate(corpus)
    assert read.form == form
    assert columns is None or read.columns == columns


def test_the_label_of_a_corpus_is_its_name_or_its_source():
    assert Corpus(source="a.de", target="a.en").label == "a.de"
    assert Corpus(file="a.tsv", name="news").label == "news"
    assert Corpus(hub="wmt/wmt14", split="test", source="de", target="en").label == "wmt/wmt14 test"


def test_files_are_not_checked_with_check_files_false(directory):
    text = RECIPE.replace("train.de", "gone.de")
    assert parse_recipe(text, "recipe.yaml").data.train[0].source == "gone.de"
    (directory / "recipe.yaml").write_text(text)
    assert load_recipe("recipe.yaml", check_files=False).data.train[0].source == "gone.de"


def test_a_hub_data_set_is_not_checked_as_a_file(directory):
    hub = "{hub: wmt/wmt14, split: train, source: de, target: en}"
    (directory / "recipe.yaml").write_text(RECIPE.replace("{source: train.de, target: train.en}", hub))
    assert load_recipe("recipe.yaml").data.train[0].hub == "wmt/wmt14"


# Overrides


def test_overrides_are_yaml_and_the_last_one_wins(directory):
    recipe = load_recipe(
        "recipe.yaml",
        ["training.max_steps=3", "training.max_steps=5", "languages.source=no", "training.learning_rate=1e-4",
         "data.train.0.limit=7", "expected={flickr: {bleu: [1, 2]}}", "training.average.kind=last"],
    )  # fmt: skip
    assert recipe.training.max_steps == 5
    assert recipe.languages.source == "no"
    assert recipe.training.learning_rate == 1e-4
    assert recipe.data.train[0].limit == 7
    assert recipe.data.train[0].source == "train.de"
    assert recipe.expected == {"flickr": {"bleu": (1.0, 2.0)}}
    assert recipe.training.average.kind == "last"
    assert recipe.training.average.count == 5


def test_a_path_in_an_override_starts_in_the_working_directory(directory, monkeypatch):
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "my.de").touch()
    (elsewhere / "my.tsv").touch()
    monkeypatch.chdir(elsewhere)
    recipe = load_recipe("../recipe.yaml", ["data.train.0.source=my.de", "data.valid={file: my.tsv}"])
    assert recipe.data.train[0].source == str(elsewhere / "my.de")
    assert recipe.data.train[0].target == "train.en"
    assert recipe.data.valid[0].file == str(elsewhere / "my.tsv")
    assert load_recipe("../recipe.yaml", ["data.root=../data"]).data.root == str(directory / "data")


def test_a_column_in_an_override_is_no_path(directory):
    (directory / "pairs.tsv").touch()
    recipe = load_recipe("recipe.yaml", ["data.valid={file: pairs.tsv, header: true, source: de, target: en}"])
    assert recipe.data.valid[0].columns == ("de", "en")


@pytest.mark.parametrize(("settings", "best"), [
    ([], "bleu"),
    (["model.type=rnn"], "bleu"),
    (["model.type=language_model", *OF_A_LANGUAGE_MODEL], "perplexity"),
    (["model.type=language_model", *OF_A_LANGUAGE_MODEL, "training.best_metric=loss"], "loss"),
    (["model.type=language_model", *OF_A_LANGUAGE_MODEL, "model.base=small"], "perplexity"),
    (["metrics=[ter, exact, chrf]"], "exact"),
    (["metrics=[chrf, bleu]"], "bleu"),
    (["metrics=[ter]"], "loss"),
])
def test_the_metric_of_the_best_model_follows_type_and_metrics(directory, settings, best):
    recipe = load_recipe("recipe.yaml", settings)
    assert recipe.training.best_metric == best
    assert parse_recipe(recipe.to_yaml(), "recipe.yaml") == recipe


@pytest.mark.parametrize(("settings", "tokenizer", "smoothing"), [
    (["model.type=pointer"], "words", 0), (["model.copy=true"], "unigram", 0), ([], "unigram", 0.1),
    (["model.copy=false"], "unigram", 0.1), (["model.copy=true", "tokenizer.type=bpe"], "bpe", 0),
])
def test_every_model_type_can_be_trained_with_its_defaults(directory, settings, tokenizer, smoothing):
    recipe = load_recipe("recipe.yaml", settings)
    assert (recipe.tokenizer.type, recipe.training.label_smoothing) == (tokenizer, smoothing)


def test_max_line_bytes_may_be_raised_for_an_existing_run(directory):
    change, = differences(load_recipe("recipe.yaml"), load_recipe("recipe.yaml", ["data.valid.max_line_bytes=7"]))
    assert change.may_change_on_resume, "it decides what is refused, never what is read"


# Bases


@pytest.fixture
def base(directory) -> Path:
    """Path of a base in another directory; line 10 of recipe.yaml names it."""
    (directory / "configs").mkdir()
    path = directory / "configs" / "size.yaml"
    path.write_text(
        "model:\n  d_model: 96\n  dropout: 0.25\ntraining:\n  max_steps: 11\n  average: {kind: last, count: 7}\n"
    )
    (directory / "recipe.yaml").write_text(
        f"{RECIPE}model: {{base: configs/size.yaml, dropout: 0.5}}\ntraining: {{average: {{count: 3}}}}\n"
    )
    return path


def test_the_recipe_wins_over_the_base_and_an_override_over_both(base):
    recipe = load_recipe("recipe.yaml", ["training.max_steps=13"])
    assert recipe.model.base is None
    assert recipe.model.d_model == 96, "from the base"
    assert recipe.model.dropout == 0.5, "from the recipe"
    assert recipe.training.max_steps == 13, "from the override"
    assert (recipe.training.average.kind, recipe.training.average.count) == ("last", 3), "merged key by key"
    assert recipe.model.num_heads == 8, "the default"


def test_a_base_may_fill_sections_that_the_recipe_does_not_have(base, directory):
    (directory / "recipe.yaml").write_text(RECIPE)
    recipe = load_recipe("recipe.yaml", [f"model.base={base}"])
    assert (recipe.model.d_model, recipe.training.max_steps) == (96, 11)


def test_the_base_of_an_override_starts_in_the_working_directory(base, directory, monkeypatch):
    (base.parent / "other.yaml").write_text("model: {d_model: 32}\n")
    monkeypatch.chdir(base.parent)
    recipe = load_recipe("../recipe.yaml", ["model.base=other.yaml"])
    assert recipe.model.d_model == 32
    assert recipe.training.max_steps == TrainingSection().max_steps


@pytest.mark.parametrize(("size", "file"), [("small", "transformer_small"), ("transformer_small", "transformer_small"),
                                            ("rnn_small", "rnn_small")])
def test_a_size_is_named_without_a_path(directory, size, file):
    (directory / "recipe.yaml").write_text(f"{RECIPE}model: {{base: {size}, dropout: 0.5}}\n")
    by_name = load_recipe("recipe.yaml")
    assert by_name == load_recipe("recipe.yaml", [f"model.base={ROOT}/configs/{file}.yaml"])
    assert load_recipe("recipe.yaml", [f"model.base={size}"]) == by_name
    assert (by_name.model.d_model, by_name.model.dropout) == (256, 0.5)


def test_a_size_means_the_same_wherever_the_recipe_lies(directory):
    (directory / "small").write_text("model: {d_model: 32}\n")
    (directory / "recipe.yaml").write_text(f"{RECIPE}model: {{base: small}}\n")
    assert load_recipe("recipe.yaml").model.d_model == 256
    assert load_recipe("recipe.yaml", ["model.base=./small"]).model.d_model == 32


def test_the_documentation_names_every_size():
    described = describe_keys(ModelSection)["base"]
    assert [size for size in model_sizes() if f"`{size}`" in described] == list(model_sizes())
    assert len(model_sizes()) == len(list((ROOT / "configs").glob("*.yaml")))


def test_an_override_reaches_into_a_list_of_the_base(base, directory):
    base.write_text("training:\n  betas: [0.1, 0.2]\n")
    assert load_recipe("recipe.yaml", ["training.betas.1=0.5"]).training.betas == (0.1, 0.5)


@pytest.mark.parametrize(
    ("size", "layers", "d_model", "num_heads", "feed_forward"),
    [
        ("tiny", 2, 128, 4, 512),
        ("small", 3, 256, 4, 1024),
        ("base", 6, 512, 8, 2048),  # Vaswani et al. 2017, table 3
        ("big", 6, 1024, 16, 4096),  # ditto
    ],
)
def test_the_sizes_in_configs_load_and_peak_where_the_paper_says(
    directory, size, layers, d_model, num_heads, feed_forward
):
    recipe = load_recipe("recipe.yaml", [f"model.base={ROOT}/configs/transformer_{size}.yaml"])
    model, training = recipe.model, recipe.training
    assert (model.encoder_layers, model.decoder_layers) == (layers, layers)
    assert (model.d_model, model.num_heads, model.feed_forward) == (d_model, num_heads, feed_forward)
    # Equation 3 of the paper at step = warmup_steps.
    assert training.learning_rate == pytest.approx((d_model * training.warmup_steps) ** -0.5, rel=1e-8)
    assert (training.betas, training.epsilon, training.label_smoothing) == ((0.9, 0.98), 1e-9, 0.1)


# Writing


def test_a_saved_recipe_loads_as_the_same_recipe(directory):
    recipe = load_recipe("recipe.yaml", ["training.threads=3", "data.test={}"])
    Path("saved.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    assert load_recipe("saved.yaml") == recipe


def test_a_recipe_for_another_directory_names_the_same_files_also_after_both_have_moved(directory, monkeypatch):
    (directory / "model").mkdir()
    settings = ["tokenizer.taken_from=model", f"data.test.flickr.target={directory / 'data' / 'flickr.en'}"]
    recipe = load_recipe("recipe.yaml", settings)
    recipe = recipe.model_copy(update={"tokenizer": recipe.tokenizer.model_copy(update={"taken_from": "model"})})
    saved = recipe.for_directory(directory / "runs" / "small")
    assert saved.tokenizer_model.resolve() == directory / "model" and saved.data_directory == directory / "data"
    (directory / "runs" / "small").mkdir(parents=True)
    Path("runs/small/recipe.yaml").write_text(saved.to_yaml(), encoding="utf-8")
    assert load_recipe("runs/small/recipe.yaml") == saved
    directory.rename(directory.with_name("moved"))
    monkeypatch.chdir(directory.with_name("moved") / "data")
    with pytest.raises(RecipeError, match=f"there is no file {directory}/data/flickr.en"):     # was absolute
        load_recipe("../runs/small/recipe.yaml")
    again = load_recipe("../runs/small/recipe.yaml", ["data.test={}"])
    assert again.data_directory == directory.with_name("moved") / "data"
    assert again.tokenizer_model.resolve() == directory.with_name("moved") / "model"


def test_resolving_leaves_columns_and_hub_names_alone():
    hub = Corpus(hub="wmt/wmt14", split="test", source="de", target="en")
    assert hub.resolve(Path("/x")) == hub
    table = Corpus(file="a.jsonl", source="de", target="en").resolve(Path("/x/y"))
    assert (table.file, table.columns) == ("/x/y/a.jsonl", ("de", "en"))


positive = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    source=text,
    name=st.none() | text,
    weight=positive,
    test=st.from_regex(r"[A-Za-z0-9_-]+", fullmatch=True),
    learning_rate=positive,
    seed=st.integers(0, 2**63 - 1),
    ratio=st.none() | st.floats(min_value=1, exclude_min=True, allow_infinity=False),
)
def test_any_recipe_survives_writing_and_reading(source, name, weight, test, learning_rate, seed, ratio):
    recipe = Recipe.model_validate(
        {
            "name": "x",
            "languages": {"source": "de", "target": "no"},
            "seed": seed,
            "data": {
                "train": [{"source": source, "target": "b", "name": name, "weight": weight}],
                "valid": {"hub": source, "split": "null", "source": "true", "target": "1e-4"},
                "test": {test: {"source": "~", "target": "2026-11-20"}},
                "cleaning": {"max_length_ratio": ratio},
            },
            "training": {"learning_rate": learning_rate},
            "expected": {test: {"chrf": [0, learning_rate]}},
        }
    )
    assert parse_recipe(recipe.to_yaml(), "recipe.yaml") == recipe


# Comparing


def test_differences_tell_which_keys_only_prolong(directory):
    old = load_recipe("recipe.yaml")
    new = load_recipe(
        "recipe.yaml",
        ["training.max_steps=7", "model.dropout=0.3", "decoding.beam_size=2", "data.train.0.limit=5",
         "data.test.news={source: data/val.de, target: data/val.en}"],
    )  # fmt: skip
    found = {difference.key: difference for difference in differences(old, new)}
    assert {key for key, difference in found.items() if not difference.may_change_on_resume} == {
        "data.train.0.limit",
        "model.dropout",
    }
    assert {"training.max_steps", "decoding.beam_size", "data.test.news.source"} < set(found)
    assert str(found["training.max_steps"]) == "training.max_steps: 100000 -> 7"
    assert str(found["data.train.0.limit"]) == "data.train.0.limit: not set -> 5"


def test_a_removed_key_is_a_difference(directory):
    found = differences(load_recipe("recipe.yaml"), load_recipe("recipe.yaml", ["data.test={}"]))
    assert {difference.key for difference in found} >= {"data.test.flickr.source", "data.test.flickr.target"}
    assert all(difference.new is None and difference.may_change_on_resume for difference in found)


def test_another_path_is_not_a_difference_but_another_corpus_is(directory):
    old = load_recipe("recipe.yaml")
    (directory / "other.yaml").write_text(
        RECIPE.replace("root: data", "root: .").replace(": train.", ": data/train.").replace(": val.", ": data/val.")
        .replace(": flickr.", ": data/flickr.")
    )  # fmt: skip
    assert old != load_recipe("other.yaml")
    assert differences(old, load_recipe("other.yaml")) == []
    assert differences(old.for_directory(directory / "runs"), old) == []
    settings = "data.train=[{source: data/train.de, target: data/train.en}, {source: data/val.de, target: data/val.en}]"
    added = {difference.key: difference for difference in differences(old, load_recipe("recipe.yaml", [settings]))}
    assert added["data.train.1.source"].new.endswith("val.de") and "data.train.0.source" not in added
    assert not added["data.train.1.source"].may_change_on_resume
    table = load_recipe("recipe.yaml", ["data.train=[{hub: a/b, split: train, source: de, target: en}]"])
    other = load_recipe("recipe.yaml", ["data.train=[{hub: a/b, split: train, source: de, target: fr}]"])
    assert [difference.key for difference in differences(table, other)] == ["data.train.0.target"]      # a column
    # Of two runs, such as in a report, paths are compared, too.
    settings = "data.train=[{source: data/val.de, target: data/val.en}]"
    of_two = differences(old, load_recipe("recipe.yaml", [settings]), of_one_run=False)
    assert {"data.train.0.source", "data.train.0.target"} <= {difference.key for difference in of_two}


def test_paths_lead_to_the_same_files_from_behind_a_symbolic_link(directory, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("disk") / "deep" / "runs"
    elsewhere.mkdir(parents=True)
    (directory / "runs").symlink_to(elsewhere)
    run = directory / "runs" / "x"
    run.mkdir()
    stored = load_recipe("recipe.yaml").for_directory(run)
    assert (run / stored.data.root / "train.de").exists()
    assert (run.resolve() / stored.data.root / "train.de").exists()


def test_a_path_on_another_drive_stays_absolute(directory, monkeypatch):
    def on_windows(path, start):
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    monkeypatch.setattr("os.path.relpath", on_windows)
    stored = load_recipe("recipe.yaml").for_directory(directory / "run")
    assert stored.data.root == os.path.realpath(directory / "data")


def test_a_recipe_of_a_model_is_parsed_once(directory, monkeypatch):
    text, read = (directory / "recipe.yaml").read_text() + "# of a model\n", []
    (directory / "recipe.yaml").write_text(text)
    (directory / "sub").mkdir()
    monkeypatch.setattr(loading, "read_yaml", lambda *arguments: read.append(arguments) or read_yaml(*arguments))
    first = parse_recipe(text, "recipe.yaml", alone=True)
    assert load_recipe("recipe.yaml", check_files=False, alone=True) == first and len(read) == 1
    monkeypatch.chdir(directory / "sub")
    assert parse_recipe(text, "recipe.yaml", alone=True).directory == first.directory / "sub" and len(read) == 1
    assert parse_recipe(f"{text}seed: 2\n", "recipe.yaml", alone=True).seed == 2 and len(read) == 2


# Schema, reference, cost


def test_schema_and_reference_in_the_repository_are_current():
    assert json.loads((ROOT / "recipes" / "recipe.schema.json").read_text()) == recipe_schema(), "make them anew with"
    assert (ROOT / "recipes" / "REFERENCE.md").read_text() == recipe_reference(), "python -m seq2seq.recipe"


def test_every_key_is_documented_and_in_the_reference():
    reference = recipe_reference()
    sections = [section_of(annotation) for annotation in (Recipe, *(entry.annotation for _, entry in walk_fields()))]
    for section in [*sections, *MODEL_SECTIONS.values()]:
        assert section is None or describe_keys(section).keys() == section.model_fields.keys()
    for key, _ in walk_fields():
        assert f"| `{key.rpartition('.')[2]}`" in reference


def test_recipes_need_none_of_the_slow_libraries():
    program = ("import sys, seq2seq.recipe; "
               "print({'torch', 'datasets', 'numpy', 'sentencepiece', 'sacrebleu'} & set(sys.modules))")
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "set()"


# All errors at once


FAULTS = """\
name: x
languages: {source: en, target: de}
data:
  train:
  - {source: a, target: b}
  - {source: a, target: b, languages: {source: en, target: fr}, tag: '>>fr<<'}
  - {source: a, target: b, languages: {source: en, target: fr}, tag: '>>de<< y'}
  valid: {source: a, target: b}
model:
  copy: true
metrics: [perplexity, bleu]
tokenizer:
  joint: false
training:
  consistency: 5
  warmup_step: 7
expected:
  t: {bleu: [5, 3]}
"""


def located(text: str) -> set[str]:
    """Return line and key of each error in a recipe."""
    with pytest.raises(RecipeError) as error:
        parse_recipe(text, "x")
    return {":".join(line.split(":")[1:3]).replace(" ", "") for line in str(error.value).splitlines()}


def test_independent_restrictions_come_all_at_once_at_the_line_and_key_of_the_user():
    """tied_embeddings is not set: the error is at tokenizer.joint. With the unknown key, `training` is not checked."""
    independent = {"6:data.train.1.tag", "7:data.train.2.tag", "10:model.copy", "11:metrics", "13:tokenizer.joint",
                   "18:expected.t", "18:expected.t.bleu"}
    assert located(FAULTS) == independent | {"16:training.warmup_step"}
    assert located(FAULTS.replace("warmup_step:", "warmup_steps:")) == independent | {"15:training.consistency"}


def test_each_valid_section_is_checked_although_another_is_wrong():
    assert located(FAULTS.replace("target: de}", "target: deutsch sprache}")) >= {
        "2:languages.target", "11:metrics", "13:tokenizer.joint", "16:training.warmup_step"}
    one_side = FAULTS.replace("a, target: b}\nmodel", "a}\nmodel")
    assert located(one_side) >= {"8:data.valid", "11:metrics", "10:model.copy"}
