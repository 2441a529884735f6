"""Tests of recipes: accepted values, error messages, and that a saved recipe loads as the same recipe."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.errors import RecipeError
from seq2seq.recipe import (
    MAY_CHANGE_ON_RESUME,
    Corpus,
    DecodingSection,
    ModelSection,
    Recipe,
    TrainingSection,
    differences,
    load_recipe,
    parse_recipe,
    recipe_reference,
    recipe_schema,
)
from seq2seq.recipe.messages import section_at, walk_fields
from seq2seq.recipe.model_sizes import model_sizes

ROOT = Path(__file__).parents[2]

RECIPE = """\
name: small
languages: {source: de, target: en}
data:
  root: data
  train:
    - {source: train.de, target: train.en}
  valid: {source: val.de, target: val.en}
  test:
    flickr: {source: flickr.de, target: flickr.en}
"""


@pytest.fixture
def directory(tmp_path, monkeypatch) -> Path:
    """The working directory, with a correct recipe.yaml and its data."""
    (tmp_path / "data").mkdir()
    for name in ("train", "val", "flickr"):
        for language in ("de", "en"):
            (tmp_path / "data" / f"{name}.{language}").write_text("x\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mistakes(text: str, *overrides: str) -> list[str]:
    """Return the error messages about a recipe, line by line."""
    Path("recipe.yaml").write_text(text)
    with pytest.raises(RecipeError) as error:
        load_recipe("recipe.yaml", overrides)
    return str(error.value).splitlines()


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
    for value, found in (("8k", "'8k'"), ("259", "259"), ("300.5", "300.5"), ("", "nothing")):
        assert mistakes(f"{RECIPE}tokenizer: {{vocab_size: {value}}}\n") == [
            "recipe.yaml:10: tokenizer.vocab_size: expected auto, or a whole number from 260 to 10,000,000; "
            f"found {found}"]


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


def choices() -> list[str]:
    """Return KEY=VALUE for every value of every key with a fixed set of values."""
    found = []
    for key, _ in walk_fields():
        section, name = section_at(tuple(key.split(".")[:-1])), key.rpartition(".")[2]
        schema = section.model_json_schema()["properties"][name]
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        if schema.get("type") == "boolean" and not key.startswith("data."):
            values = ["true", "false"]
        found += [f"{key}={value}" for value in values]
    return found


OF_A_LANGUAGE_MODEL = ["languages={target: en}", "data={train: [{text: data/train.en}], valid: {text: data/val.en}}"]
# Other settings that a choice requires.
NEEDED = {
    "tokenizer.joint=false": ["model.tied_embeddings=none"],
    "model.cell=gru": ["model.type=rnn"],
    "model.context=hierarchical": ["data.context=1"],
    "model.cell=lstm": ["model.type=rnn"],
    "model.input_feeding=true": ["model.type=rnn"],
    "model.type=language_model": OF_A_LANGUAGE_MODEL,
    "training.best_metric=exact": ["metrics=[bleu, exact]"],
    "training.teachers.ensemble=true": ["training.teachers.count=1"],
    "training.teachers.ensemble=false": ["training.teachers.count=1"],
}


@pytest.mark.parametrize("setting", choices())
def test_every_choice_is_accepted(directory, setting):
    recipe = load_recipe("recipe.yaml", [setting, *NEEDED.get(setting, [])])
    key, _, value = setting.partition("=")
    stored = recipe
    for step in key.split("."):
        stored = getattr(stored, step)
    assert str(stored).lower() == value


def test_the_choices_are_found_at_all():
    assert {"model.norm=pre", "training.schedule=cosine", "training.average.kind=best"} <= set(choices())


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


# Mistakes


def test_a_directory_instead_of_a_file_is_named_as_such(directory):
    (directory / "data" / "folder").mkdir()
    assert mistakes(RECIPE.replace("val.en", "folder")) == [
        "recipe.yaml:7: data.valid.target: data/folder is not a regular file."]


def test_several_mistakes_are_reported_together_with_their_lines(directory):
    text = RECIPE.replace("val.en", "vall.en") + "training:\n  learning_rat: 0.1\n  max_steps: many\n"
    assert mistakes(text) == [
        "recipe.yaml:7: data.valid.target: there is no file data/vall.en. Did you mean 'data/val.en'?",
        "recipe.yaml:11: training.learning_rat: unknown key. Did you mean 'learning_rate'?",
        "recipe.yaml:12: training.max_steps: expected a whole number above 0; found 'many'",
    ]


def test_the_width_of_a_pointer_network_needs_no_heads():
    assert ModelSection(type="pointer", d_model=100).num_heads == 8


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ("training: {warmup: 5}", "training.warmup: unknown key. Did you mean 'warmup_steps'?"),
        ("beam_size: 3", "beam_size: unknown key. Did you mean 'decoding.beam_size'?"),
        ("max_steps: 3", "max_steps: unknown key. Did you mean 'training.max_steps'?"),
        ("colour: red", "colour: unknown key."),
        ("training: {max_steps: 1e5}",
         "training.max_steps: expected a whole number above 0; found 100000.0. Write 100000."),
        ("training: {max_steps: '7'}",
         "training.max_steps: expected a whole number above 0; found '7'. Write it without quotes."),
        ("training: {max_steps: !!bool x}", "training.max_steps: expected a whole number above 0; found 'x'"),
        ("training: {max_steps: -_}", "training.max_steps: expected a whole number above 0; found '-_'"),
        ("training: {max_steps: true}", "training.max_steps: expected a whole number above 0; found true"),
        ("training: {max_steps: 0}", "training.max_steps: expected a number above 0; found 0"),
        ("training: {learning_rate: fast}", "training.learning_rate: expected a number above 0; found 'fast'"),
        ("training: {learning_rate: .inf}", "training.learning_rate: expected a finite number above 0; found inf"),
        ("training: {learning_rate: inf}", "training.learning_rate: expected a number above 0; found 'inf'"),
        ("training: {learning_rate: NaN}", "training.learning_rate: expected a number above 0; found 'NaN'"),
        ("training: {label_smoothing: -inf}",
         "training.label_smoothing: expected a number of at least 0 and below 1; found '-inf'"),
        ("seed: many", "seed: expected a whole number of at least 0; found 'many'"),
        ("training: {threads: inf}",
         "training.threads: expected a whole number above 0 and of at most 1,024; found 'inf'"),
        ("training: {label_smoothing: 1}", "training.label_smoothing: expected a number below 1; found 1"),
        ("training: {checkpoint_minutes: 5}", "training.checkpoint_minutes: expected a number of at most 2; found 5"),
        ("training: {gradient_clip: -1}", "training.gradient_clip: expected a number of at least 0; found -1"),
        ("training: {betas: [0.9]}", "training.betas: expected a list of 2 numbers, found a list of length 1"),
        ("training: {betas: [0.1, 0.2, 0.3]}",
         "training.betas: expected a list of 2 numbers, found a list of length 3"),
        ("training: {betas: [0.1, x]}", "training.betas.1: expected a number; found 'x'"),
        ("training: {betas: 0.9}", "training.betas: expected a list; found 0.9"),
        ("training:", "training: expected a section (keys with values); found nothing"),
        ("training: {average: last}", "training.average: expected a section (keys with values); found 'last'"),
        ("training: {optimizer: adm}",
         "training.optimizer: expected 'adam', 'adamw' or 'muon'; found 'adm'. Did you mean 'adam'?"),
        ("tokenizer: {joint: no}", "tokenizer.joint: expected true or false; found 'no'"),
        ("model: {num_heads: 3}", "model.num_heads: d_model (512) cannot be divided into 3 heads of equal size"),
        ("model: {d_model: 7, num_heads: 7}", "model.positions: sinusoidal positions need an even d_model, found 7"),
        ("model: {selection: hard, normalize: relu}",
         "model.selection: 'hard' needs probabilities, which normalize: relu does not produce. Use softmax."),
        ("model: {type: rnn, window: 3}", "model.window: has no effect with model.type: rnn. Leave it out."),
        ("model: {type: rnn, norm: pre}", "model.norm: has no effect with model.type: rnn. Leave it out."),
        ("model: {cell: lstm}", "model.cell: has no effect with model.type: transformer. Leave it out."),
        ("model: {window: 0}", "model.window: expected a number above 0; found 0"),
        ("model: [1]", "model: expected a section (keys with values); found a list"),
        ("model: {dropout: 0}\ntokenizer: {joint: false}",
         "model.tied_embeddings: 'all' shares one matrix between source and target, which requires tokenizer.joint: "
         "true. Write 'decoder' or 'none' here."),
        ("model: {max_positions: 64}",
         "model.max_positions: training sentences of 256 pieces and `</s>` need at least 257 positions, found 64. "
         "Raise max_positions, or lower data.cleaning.max_pieces."),
        ("tokenizer: {type: words, subword_sampling: 0.1}",
         "tokenizer.subword_sampling: whole words have no subwords; leave this key out, or set tokenizer.type: "
         "unigram"),
        ("model: {type: pointer}\ntokenizer: {type: unigram}",
         "model.type: the targets of a pointer are positions of words, which requires tokenizer: {type: words}; found "
         "'unigram'"),
        ("training: {label_smoothing: 0.1}\nmodel: {type: pointer}\ntokenizer: {type: words}",
         "training.label_smoothing: a pointer does not support label smoothing, because its distribution covers only "
         "the words of the source sentence. Set training.label_smoothing: 0."),
        ("model: {copy: true, tied_embeddings: none}\ntokenizer: {joint: false}\ntraining: {label_smoothing: 0}",
         "model.copy: the copy mechanism requires source and target to have the same vocabulary. Set tokenizer.joint: "
         "true."),
        ("training: {label_smoothing: 0.1}\nmodel: {copy: true}",
         "training.label_smoothing: model.copy does not support label smoothing, because copied pieces cannot be "
         "smoothed. Set training.label_smoothing: 0."),
        *((f"training: {{consistency: 5, label_smoothing: 0}}\nmodel: {{{model}}}",
           "training.consistency: it compares predictions over a vocabulary with different dropout masks, which "
           f"{unfit} excludes. Set training.consistency: 0, or change it.")
          for model, unfit in (("dropout: 0", "model.dropout: 0"), ("copy: true", "model.copy: true"),
                               ("selection: hard", "model.selection: hard"), ("type: pointer", "model.type: pointer"))),
        *((f"training: {{{key}: 0.1, label_smoothing: 0}}\nmodel: {{type: pointer}}",
           f"training.{key}: a pointer's targets are positions. Leave this out.")
          for key in ("word_dropout", "switch_out")),
        *((f"training: {{bidirectional_epochs: 1, label_smoothing: 0{more}",
           f"training.bidirectional_epochs: it does not work with {unmet}. Leave one of the two out.")
          for more, unmet in (("}\nmodel: {type: pointer}", "model.type: pointer"),
                              (", guided_alignment: 0.1}", "guided_alignment"),
                              ("}\ntokenizer: {joint: false}\nmodel: {tied_embeddings: none}",
                               "tokenizer.joint: false"))),
        ("training: {consistency: -1}", "training.consistency: expected a number of at least 0; found -1"),
        ("model: {type: pointer, copy: true}\ntokenizer: {type: words}\ntraining: {label_smoothing: 0}",
         "model.copy: has no effect with model.type: pointer. Leave it out."),
        ("training: {best_metric: exact}",
         "training.best_metric: 'exact' is not in metrics: [bleu, chrf, ter]. Choose bleu, chrf, loss or perplexity, "
         "or add it to metrics."),
        ("metrics: []", "metrics: expected at least one item"),
        ("metrics: [bleu, wer]",
         "metrics.1: expected 'bleu', 'chrf', 'ter', 'exact', 'perplexity', 'word_perplexity' or "
         "'character_perplexity'; found 'wer'. Did you mean 'ter'?"),
        ("metrics: [bleu, perplexity]",
         "metrics: 'perplexity' is not for model.type: transformer; expected some of bleu, chrf, ter, exact"),
        ("decoding: {beam_size: 3, n_best: 5}",
         "decoding.n_best: a beam of 3 cannot produce 5 translations; raise beam_size"),
        ("expected: {flickr: {blue: [1, 2]}}",
         "expected.flickr.blue: expected 'bleu', 'chrf', 'ter', 'exact', 'perplexity', 'word_perplexity' or "
         "'character_perplexity'; found 'blue'. Did you mean 'bleu'?"),
        ("expected: {news: {bleu: [1, 2]}}", "expected.news: data.test has no 'news'; it has flickr"),
        ("expected: {flickr: {bleu: [2, 1]}}",
         "expected.flickr.bleu: the lowest score must be first, found [2.0, 1.0]"),
        ("name: other", "name: given twice, first in line 1"),
        ("model: {base: none.yaml}", "model.base: there is no file none.yaml. Sizes are tiny, small, base, big, "
         "rnn_small."),
        ("model: {base: smal}", "model.base: unknown size 'smal'. Did you mean 'small'? Sizes are tiny, small, base, "
         "big, rnn_small."),
        ("model: {base: 3}", "model.base: expected a size or a path, found 3. Sizes are tiny, small, base, big, "
         "rnn_small."),
    ],
)  # fmt: skip
def test_a_mistake_says_where_it_is_and_what_is_expected(directory, added, said):
    assert mistakes(f"{RECIPE}{added}\n") == [f"recipe.yaml:10: {said}"]


@pytest.mark.parametrize(
    ("corpus", "said"),
    [
        ("{source: train.de}", ": a corpus needs `source` and `target` (two files), or `file`, or `hub`"),
        ("{source: train.de, target: 2}", ": a corpus needs `source` and `target` (two files), or `file`, or `hub`"),
        ("{file: a.tsv, hub: b, split: c}", ": a corpus has either `file` or `hub`"),
        ("{source: train.de, target: train.en, split: x}",
         ": only a corpus with `hub` can have `config`, `split` and `streaming`"),
        ("{source: train.de, target: train.en, header: true}",
         ": only a corpus with a .tsv or .csv `file` can have `header: true`"),
        ("{target: train.en, translated_by: ., header: true}",
         ": only a corpus with a .tsv or .csv `file` can have `header: true`"),
        ("{file: pairs.jsonl, header: true, source: de, target: en}",
         ": only a corpus with a .tsv or .csv `file` can have `header: true`"),
        ("{file: pairs.ods}", ".file: expected a name that ends in .tsv, .csv, .jsonl or .tmx (.gz or .zst may "
         "follow), or in .parquet, found 'pairs.ods'"),
        ("{hub: a/b, split: c, translated_by: .}",
         ": `translated_by` needs one file, either `source` or `target`, and generates the other side"),
        ("{target: 2, translated_by: .}",
         ": `translated_by` needs one file, either `source` or `target`, and generates the other side"),
        ("{source: train.de, target: train.en, sampling: true}",
         ": only a corpus with `translated_by` can have `sampling`"),
        ("{file: pairs.tsv, markup: true}", ": only a corpus with a .tmx `file` can have `markup: true`"),
        ("{source: train.de, target: train.en, tag: ' '}",
         ": `tag` must be a single line that is not blank, and a corpus with `text` cannot have a tag"),
        ("{hub: wmt/wmt14, source: de, target: en}", ": `hub` needs `split`, such as `split: train`"),
        ("{hub: wmt/wmt14, split: train}", ": `source` and `target` must name the columns"),
        ("{file: pairs.jsonl, source: 1, target: 2}", ": `source` and `target` must name the columns"),
        ("{file: pairs.tsv, source: 1}", ": set both columns, `source` and `target`, or neither of them"),
        ("{file: pairs.tsv, source: de, target: en}",
         ": a .tsv without `header: true` has numbered columns, such as `source: 1, target: 2`"),
        ("{file: pairs.csv, source: de, target: en}",
         ": a .csv without `header: true` has numbered columns, such as `source: 1, target: 2`"),
        ("{file: pairs.csv, header: true}", ": `source` and `target` must name the columns"),
        ("{file: pairs.tsv, source: 0, target: 1}", ".source: columns are numbered from 1, found 0"),
        ("{source: 1.5, target: train.en}",
         ".source: expected a path, the name of a column or the number of a column"),
        ("{source: train.de, target: train.en, weight: 0}", ".weight: expected a number above 0; found 0"),
        ("train.de", ": expected a section (keys with values); found 'train.de'"),
    ],
)  # fmt: skip
def test_a_corpus_that_is_none_of_the_three_forms_is_explained(directory, corpus, said):
    for name in ("a.tsv", "pairs.csv", "pairs.tsv", "pairs.jsonl", "pairs.ods"):
        (directory / "data" / name).touch()
    text = RECIPE.replace("{source: train.de, target: train.en}", corpus)
    assert mistakes(text) == [f"recipe.yaml:6: data.train.0{said}"]


def test_what_is_missing_is_named_with_its_meaning(directory):
    assert mistakes("name: small\nlanguages: {source: de}\n") == [
        "recipe.yaml:1: data: missing. Parallel text for training, validation and test.",
        "recipe.yaml:2: languages.target: missing. "
        "Code of the language to translate into, such as `en`. The code also selects sacreBLEU's tokeniser.",
    ]


def test_names_and_languages_have_a_form(directory):
    text = RECIPE.replace("name: small", "name: ../x").replace(
        "source: de, target: en}\ndata", "source: d!, target: 3}\ndata"
    )
    assert mistakes(text.replace("flickr:", "a b:")) == [
        "recipe.yaml:1: name: expected letters a-z, digits, '_', '.' and '-', with a letter or digit first; "
        "found '../x'",
        "recipe.yaml:2: languages.source: expected a language code, such as de, zh or pt-BR; found 'd!'",
        "recipe.yaml:2: languages.target: expected text; found 3",
        "recipe.yaml:9: data.test.a b: expected letters a-z, digits, '_' and '-'; found 'a b'",
    ]


def test_a_language_name_is_refused_with_its_code(directory):
    text = RECIPE.replace("source: de, target: en}\ndata", "source: portuguese, target: klingonisch}\ndata")
    assert mistakes(text) == [
        "recipe.yaml:2: languages.source: expected a language code, such as de, zh or pt-BR; found 'portuguese'. Its "
        "code is pt.",
        "recipe.yaml:2: languages.target: expected a language code, such as de, zh or pt-BR; found 'klingonisch'",
    ]


def test_only_training_corpora_have_a_weight(directory):
    assert mistakes(RECIPE.replace("val.en", "val.en, weight: 2").replace("flickr.en", "flickr.en, weight: 3")) == [
        "recipe.yaml:7: data.valid.weight: only training corpora can have a weight",
        "recipe.yaml:9: data.test.flickr.weight: only training corpora can have a weight",
    ]


def test_an_empty_list_of_training_corpora_is_a_mistake(directory):
    assert mistakes(RECIPE.replace("\n    - {source: train.de, target: train.en}", " []")) == [
        "recipe.yaml:5: data.train: expected at least one item"
    ]
    assert mistakes(RECIPE.replace("target: train.en", "target: train.en, limit: x")) == [
        "recipe.yaml:6: data.train.0.limit: expected a whole number above 0; found 'x'"
    ]


def test_a_missing_data_directory_is_reported_once(directory):
    assert mistakes(RECIPE.replace("root: data", "root: date")) == [
        "recipe.yaml:4: data.root: there is no directory date"
    ]


def test_a_file_in_place_of_a_directory_is_named_as_such(directory):
    (directory / "spm.model").write_bytes(b"")
    said, = mistakes(RECIPE + "tokenizer: {taken_from: spm.model}\n")
    assert said.endswith("tokenizer.taken_from: spm.model is not a directory")


def test_files_are_not_checked_with_check_files_false(directory):
    text = RECIPE.replace("train.de", "gone.de")
    assert parse_recipe(text, "recipe.yaml").data.train[0].source == "gone.de"
    (directory / "recipe.yaml").write_text(text)
    assert load_recipe("recipe.yaml", check_files=False).data.train[0].source == "gone.de"


def test_a_hub_data_set_is_not_checked_as_a_file(directory):
    hub = "{hub: wmt/wmt14, split: train, source: de, target: en}"
    (directory / "recipe.yaml").write_text(RECIPE.replace("{source: train.de, target: train.en}", hub))
    assert load_recipe("recipe.yaml").resolve().data.train[0].hub == "wmt/wmt14"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "recipe.yaml: the recipe is empty"),
        ("# nothing\n", "recipe.yaml: the recipe is empty"),
        ("- a\n- b\n", "recipe.yaml:1: expected a recipe with keys and values, such as `name: small`"),
        ("name: a\ndata:\n\troot: x\n", "recipe.yaml:3: not valid YAML: a tab; YAML must be indented with spaces"),
        ("name: a\n? {b: c}\n: d\n", "recipe.yaml:2: a key must be a word; put {braces} in quotes"),
        ("a: " + "[" * 500, "recipe.yaml: not a recipe: nested too deeply, or an alias that contains itself"),
        ("a: &a {b: *a}\n", "recipe.yaml: not a recipe: nested too deeply, or an alias that contains itself"),
        ("".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 11)}]\n" for n in range(7)),
         "recipe.yaml: not valid YAML: more than 100,000 values"),
    ],
)  # fmt: skip
def test_text_that_is_not_a_recipe_is_refused(directory, text, said):
    assert said in mistakes(text)


def test_text_that_cannot_be_encoded_is_refused_with_its_line(directory):
    with pytest.raises(RecipeError,
                       match="^--set name=.*: contains a character that UTF-8 cannot encode .* Correct the text"):
        load_recipe("recipe.yaml", ['name="\\udced"'])


def test_a_syntax_error_names_its_line(directory):
    (told,) = mistakes("name: a\nlanguages: {source: de\ndata: x\n")
    assert told.startswith("recipe.yaml:3: not valid YAML: ")


def test_an_unreadable_recipe_file_is_reported(directory):
    with pytest.raises(RecipeError, match=r"^there is no recipe recipe.yml. Did you mean 'recipe.yaml'\?$"):
        load_recipe("recipe.yml")
    with pytest.raises(RecipeError, match="^data is a directory; a recipe is a file.$"):
        load_recipe("data")
    with pytest.raises(RecipeError, match="^. is a directory; a recipe is a file. It contains a recipe: recipe.yaml$"):
        load_recipe(".")
    (directory / "latin.yaml").write_bytes("name: a\n# für".encode("latin-1"))
    with pytest.raises(RecipeError, match="^latin.yaml:2: not UTF-8 text"):
        load_recipe("latin.yaml")


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


def test_mistakes_in_overrides_are_named_by_the_option(directory):
    assert mistakes(
        RECIPE,
        "training.max_step=5",
        "training.max_steps=five",
        "training",
        "=5",
        "decoding=[",
        "data.train.1.limit=5",
        "name.first=x",
        "data.valid={source: data/val.de, targt: data/val.en}",
        "model={base: size.yaml}",
        "training.betas.0=0.5",
        "data.test.news.source=gone.de",
        "model.base=[gone.yaml]",
    ) == [
        "--set training.max_step=5: unknown key. Did you mean 'max_steps'?",
        "--set training.max_steps=five: expected a whole number above 0; found 'five'",
        "--set training: expected KEY=VALUE, such as training.max_steps=200",
        "--set =5: expected KEY=VALUE, such as training.max_steps=200",
        "--set decoding=[: not valid YAML: while parsing a flow node, expected the node content, "
        "but found '<stream end>'",
        "--set data.train.1.limit=5: data.train has no item '1': it is a list of length 1, and its first item is 0",
        "--set name.first=x: name is neither a section nor a list in this recipe; set name itself",
        "--set data.valid={source: data/val.de, targt: data/val.en}: data.valid.targt: unknown key. "
        "Did you mean 'target'?",
        "--set model={base: size.yaml}: set the base with --set model.base=SIZE_OR_PATH",
        "--set training.betas.0=0.5: training.betas: expected a list; found a section",
        "--set data.test.news.source=gone.de: data.test.news: "
        "a corpus needs `source` and `target` (two files), or `file`, or `hub`",
        f"--set data.test.news.source=gone.de: there is no file {directory}/gone.de. A path given by --set is relative "
        f"to the working directory. Relative to data.root, it is {directory}/data/gone.de, which does not exist "
        "either. Write an absolute path, or a path relative to the working directory.",
        "--set model.base=[gone.yaml]: expected a size or a path, found a list. Sizes are tiny, small, base, big, "
        "rnn_small.",
    ]


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


def test_a_missing_file_of_an_override_says_where_data_root_would_have_had_it(directory):
    (directory / "mine").mkdir()
    (directory / "mine" / "a").touch()
    corpus, root = "data.train=[{source: a, target: b}]", "data.root=mine"
    assert mistakes(RECIPE.partition("  valid")[0] + "  valid: {source: a, target: a}\n", corpus, root) == [
        f"--set {corpus}: data.train.0.source: there is no file {directory}/a. A path given by --set is relative to "
        f"the working directory. Relative to data.root, it is {directory}/mine/a, which exists: write mine/a here.",
        f"--set {corpus}: data.train.0.target: there is no file {directory}/b. A path given by --set is relative to "
        f"the working directory. Relative to data.root, it is {directory}/mine/b, which does not exist either. "
        "Write an absolute path, or a path relative to the working directory.",
    ]


def test_a_missing_path_of_an_override_says_where_the_recipe_would_have_had_it(directory, monkeypatch):
    (directory / "elsewhere").mkdir()
    (directory / "size.yaml").write_text("model: {d_model: 96}\n")
    monkeypatch.chdir(directory / "elsewhere")
    for key, name, kind in [
        ("data.root", "data", "directory"), ("model.base", "size.yaml", "file"),
        ("training.start_from", "data", "directory"), ("tokenizer.taken_from", "data", "directory"),
    ]:
        with pytest.raises(RecipeError) as error:
            load_recipe("../recipe.yaml", [f"{key}={name}"])
        assert str(error.value) == (
            f"--set {key}={name}: there is no {kind} {directory}/elsewhere/{name}. A path given by --set is relative "
            f"to the working directory. Relative to the recipe, it is {directory}/{name}, which exists: write "
            f"{directory}/{name} here.")


@pytest.mark.parametrize(("name", "path"), [("gone.de", "{}/gone.de"), ("/nowhere/gone.de", "/nowhere/gone.de")])
def test_a_missing_file_that_data_root_would_not_move_has_one_place(directory, name, path):
    corpus = f"data.valid={{source: {name}, target: data/val.en}}"
    told = f"--set {corpus}: data.valid.source: there is no file {path.format(directory)}."
    assert told in mistakes(RECIPE, corpus, "data.root=.")


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
    described = ModelSection.model_fields["base"].description
    assert [size for size in model_sizes() if f"`{size}`" in described] == list(model_sizes())
    assert len(model_sizes()) == len(list((ROOT / "configs").glob("*.yaml")))


def test_an_override_reaches_into_a_list_of_the_base(base, directory):
    base.write_text("training:\n  betas: [0.1, 0.2]\n")
    assert load_recipe("recipe.yaml", ["training.betas.1=0.5"]).training.betas == (0.1, 0.5)


def test_mistakes_in_the_base_name_its_file_and_line(base, directory):
    base.write_text("model:\n  base: other.yaml\n  d_modell: 96\ntraining: []\ndecoding:\n  beam_size: 3\n")
    assert mistakes((directory / "recipe.yaml").read_text() + "wrong: 1\n") == [
        "configs/size.yaml:2: model.base: a base cannot have a base; copy the values of the other base into this "
        "file",
        "configs/size.yaml:3: model.d_modell: unknown key. Did you mean 'd_model'?",
        "configs/size.yaml:4: training: expected a section with keys and values",
        "configs/size.yaml:5: decoding: a base can only have the sections `model:` and `training:`",
        "recipe.yaml:12: wrong: unknown key.",
    ]


@pytest.mark.parametrize(("setting", "unmet"), [
    ("data.augmentation.typos=0.1", "typos"), ("data.augmentation.terms=0.1", "terms"),
    ("data.train.0.tag=<x>", "tags or several target languages")])
def test_the_condition_that_bidirectional_epochs_do_not_meet_is_named(directory, setting, unmet):
    assert mistakes(RECIPE, setting, "training.bidirectional_epochs=1") == [
        "--set training.bidirectional_epochs=1: it does not work with "
        f"{unmet}. Leave one of the two out."]


def test_a_value_of_the_base_that_does_not_fit_the_recipe_is_named_at_the_line_of_the_recipe(base, directory):
    base.write_text("model:\n  norm: pre\ntraining:\n  label_smoothing: 0.3\n")
    text = (directory / "recipe.yaml").read_text()
    advice = "override it here, or change model.base."
    assert mistakes(text.replace("dropout: 0.5", "type: rnn")) == [
        "recipe.yaml:10: model.norm: has no effect with model.type: rnn. Leave it out. It comes from "
        f"configs/size.yaml:2; {advice}"]
    assert mistakes(text, "model.copy=true") == [
        "recipe.yaml:10: training.label_smoothing: model.copy does not support label smoothing, because copied pieces "
        f"cannot be smoothed. Set training.label_smoothing: 0. It comes from configs/size.yaml:4; {advice}"]
    old = directory / "old"
    old.mkdir()
    (old / "recipe.yaml").write_text("model: {type: rnn, cell: lstm}\n")
    text = f"{RECIPE}model: {{type: transformer}}\ntraining: {{start_from: old}}\n"
    assert mistakes(text) == [
        "recipe.yaml:11: model.cell: has no effect with model.type: transformer. Leave it out. It comes from "
        "old/recipe.yaml:1; override it here, or change training.start_from."]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "configs/size.yaml:1: expected sections `model:` and `training:`"),
        ("", "configs/size.yaml:1: expected sections `model:` and `training:`"),
        ("model: {", "configs/size.yaml:1: not valid YAML"),
    ],
)
def test_a_base_that_is_no_base_is_refused(base, directory, text, said):
    base.write_text(text)
    assert mistakes((directory / "recipe.yaml").read_text())[0].startswith(said)


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


def test_equal_recipes_produce_equal_yaml(directory):
    assert load_recipe("recipe.yaml") == load_recipe("recipe.yaml")
    assert load_recipe("recipe.yaml") != load_recipe("recipe.yaml", ["seed=2"])
    assert load_recipe("recipe.yaml") != "recipe.yaml"


def test_a_resolved_recipe_means_the_same_in_any_directory(directory, monkeypatch):
    recipe = load_recipe("recipe.yaml").resolve()
    (directory / "runs").mkdir()
    Path("runs/recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    monkeypatch.chdir(directory / "data")
    again = load_recipe("../runs/recipe.yaml")
    assert again == recipe
    assert again.resolve() == recipe
    assert again.data.train[0].source == str(directory / "data" / "train.de")


def test_resolving_leaves_columns_and_hub_names_alone():
    hub = Corpus(hub="wmt/wmt14", split="test", source="de", target="en")
    assert hub.resolve(Path("/x")) == hub
    table = Corpus(file="a.jsonl", source="de", target="en").resolve(Path("/x/y"))
    assert (table.file, table.columns) == ("/x/y/a.jsonl", ("de", "en"))


positive = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs"]))


@settings(max_examples=50, deadline=None)
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


def test_the_same_files_with_other_path_spellings_are_not_a_difference(directory):
    old = load_recipe("recipe.yaml")
    (directory / "other.yaml").write_text(
        RECIPE.replace("root: data", "root: .").replace(": train.", ": data/train.").replace(": val.", ": data/val.")
        .replace(": flickr.", ": data/flickr.")
    )  # fmt: skip
    assert old != load_recipe("other.yaml")
    assert differences(old, load_recipe("other.yaml")) == []
    assert differences(old.resolve(), old) == []


def test_every_prolonging_key_exists():
    assert set(MAY_CHANGE_ON_RESUME) <= {key for key, _ in walk_fields()}


# Schema, reference, cost


def test_schema_and_reference_in_the_repository_are_current():
    assert json.loads((ROOT / "recipes" / "recipe.schema.json").read_text()) == recipe_schema(), "make them anew with"
    assert (ROOT / "recipes" / "REFERENCE.md").read_text() == recipe_reference(), "python -m seq2seq.recipe"


def test_every_key_is_documented_and_in_the_reference():
    reference = recipe_reference()
    for key, entry in walk_fields():
        assert entry.description, key
        assert f"| `{key.rpartition('.')[2]}`" in reference


def test_sections_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        DecodingSection().beam_size = 3


def test_recipes_need_none_of_the_slow_libraries():
    program = ("import sys, seq2seq.recipe; "
               "print({'torch', 'datasets', 'numpy', 'sentencepiece', 'sacrebleu'} & set(sys.modules))")
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "set()"
