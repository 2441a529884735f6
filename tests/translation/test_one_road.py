"""All translations come from `Translator.translate`: they keep tags and placeholders, and every score of a model is
that of its translations."""

import ast
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from random_models import ENGLISH, GERMAN, PAIRS, recipe_text, save_random_model, trained_tokenizers
from toy import RECIPE, train_toy
from typer.testing import CliRunner

import seq2seq
from seq2seq import Source, Translator, TranslatorPool
from seq2seq.cli import application
from seq2seq.errors import OptionError
from seq2seq.evaluation.recipe_tests import read_tests
from seq2seq.evaluation.scores import evaluate_tests, score_pairs, to_dict
from seq2seq.evaluation.systems import read_system
from seq2seq.formats.placeholders import Placeholders
from seq2seq.recipe import load_recipe
from seq2seq.storage.checkpoints import best_bundle, bundle_metadata
from seq2seq.training.distributed import SINGLE_PROCESS
from seq2seq.training.validation import Validation
from seq2seq.translation.line_search import _without_tag, _words_of_text
from seq2seq.translation.search_setup import Part
from seq2seq.translation.word_confidence import Word

PACKAGE = Path(seq2seq.__file__).parent
LINES = ["<law> ein <b>Hund</b> läuft", "eine {name} Katze schläft", "<law> %s der Hund", "",
         "die <i>Katze</i> läuft im Haus", "🙂 ein Hund"]
REFERENCES = ["a <b>dog</b> runs", "a {name} cat sleeps", "%s the dog", "", "the <i>cat</i> runs in the house",
              "🙂 a dog"]


def run(*arguments, input=None):
    result = CliRunner().invoke(application([]), list(map(str, arguments)), input=input)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module", params=[0, 1], ids=["without context", "with context"])
def model(request, tmp_path_factory):
    """Model with random weights, which has a tag."""
    text = recipe_text("auto", "d_model: 16, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 32",
                       "beam_size: 2, max_length: 9").replace("train.en}", "train.en, tag: <law>}")
    if request.param:
        text = text.replace("  cleaning", "  context: 1\n  cleaning")
    folder = tmp_path_factory.mktemp("model")
    tokenizers = trained_tokenizers(text, [*PAIRS, (" ".join(LINES), "{}<>%/")])
    return save_random_model(folder / "model", text, tokenizers, 5)


@pytest.fixture(scope="module")
def translator(model):
    return Translator.load(model, "cpu", "fp32")


def texts(found):
    return [best.text for best, *_ in found]


def test_the_score_of_a_model_is_that_of_its_translations(model, tmp_path):
    for name, lines in (("source", LINES), ("reference", REFERENCES)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "hypothesis").write_text(run("translate", model, tmp_path / "source", "--precision", "fp32"))
    reference = ("--reference", tmp_path / "reference", "--format", "json")
    ours = json.loads(run("evaluate", model, "--source", tmp_path / "source", *reference, "--precision", "fp32"))
    assert ours.pop("chrf") and all(value.pop("precision") == "fp32" for value in ours.values())
    theirs = json.loads(run("evaluate", tmp_path / "hypothesis", *reference))
    assert theirs.pop("chrf") and ours == theirs


def test_evaluation_validation_and_reports_score_the_translations(translator, model, tmp_path):
    pairs = list(zip(LINES, REFERENCES, strict=True))
    expected = texts(translator.translate(LINES))
    assert expected[1].count("{name}") == 1 and expected[4].count("</i>") == 1
    seen = []

    def translate(lines, **options):
        found = translator.translate(lines, **options)
        seen.append(texts(found))
        return found

    of_road = score_pairs(translator, pairs, ["chrf"], translate)["chrf"].value
    assert score_pairs(translator, pairs, ["chrf"])["chrf"].value == of_road and seen == [expected]
    for name, lines in (("source", LINES), ("reference", REFERENCES)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    tests = read_tests([model], tmp_path / "source", [tmp_path / "reference"], None)
    system = read_system(model, tests, device="cpu", precision="fp32")
    assert system.translations[tests[0].name] == expected
    assert tests[0].texts[0] == "ein <b>Hund</b> läuft"


def test_the_tests_of_a_training_and_its_validation_are_those_of_evaluate(tmp_path):
    marked = RECIPE.replace("source: valid.en, target: valid.de", "source: marked.en, target: marked.de")
    texts_by_language = {"en": ["<b>one</b> cat {x}", "two <i>dog</i>"], "de": ["<b>eins</b> Katze {x}", "zwei Hund"]}
    for language, lines in texts_by_language.items():
        (tmp_path / f"marked.{language}").write_text("".join(f"{line}\n" for line in lines))
    train_toy(tmp_path, ["training.max_steps=2", "training.validate_every=2"], marked)
    recipe, metadata = load_recipe(tmp_path / "recipe.yaml"), bundle_metadata(best_bundle(tmp_path / "run"))
    translator = Translator.load(tmp_path / "run", "cpu", "fp32", 1)
    assert {name: to_dict(scores) for name, scores in evaluate_tests(translator, recipe).items()} == metadata["test"]
    validation = Validation(recipe, translator.tokenizers)
    # Validation knows no measured attention head yet.
    scores = validation._scores(replace(translator, aligner=type(translator.aligner)()), SINGLE_PROCESS, ["chrf"])
    assert scores["en-de"]["chrf"].value == metadata["validation"]["chrf"]["value"]


def test_only_the_translator_searches_lines_without_keeping_tags_and_placeholders():
    callers: dict[str, set[str]] = {"search_lines": set(), "search_parts": set(), "_search_batch": set()}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in callers:
                callers[node.attr].add(str(path.relative_to(PACKAGE)))
    assert callers == {"search_lines": {"translation/translator.py"}, "_search_batch": {"translation/line_search.py"},
                       "search_parts": {"translation/line_search.py", "translation/generation.py"}}


def test_lines_without_markup_are_searched_once_and_as_they_are(translator, monkeypatch):
    searched = []

    def search_lines(self, sources, setup, progress=None):
        searched.append([source.text for source in sources])
        return original(self, sources, setup, progress)

    original = type(translator).search_lines
    monkeypatch.setattr(type(translator), "search_lines", search_lines)
    found = translator.translate(GERMAN)
    assert searched[0] == GERMAN and all(set(again) <= {""} for again in searched[1:])
    assert found == original(translator, list(translator.reader.number(GERMAN)), translator.search_setup({}))


@pytest.mark.parametrize("options", [{}, {"n_best": 2}, {"sampling": True, "n_best": 2, "seed": 7}, {"mbr": 2}])
def test_every_translation_of_every_kind_of_search_keeps_tags_and_placeholders(translator, options):
    for line, n_best in zip(LINES, translator.translate(LINES, **options), strict=True):
        text = line.removeprefix("<law> ")
        assert Placeholders().counts(n_best[0].text) == Placeholders().counts(text)
        assert all(sorted(re.findall("</?[bi]>", one.text)) == sorted(re.findall("</?[bi]>", text)) for one in n_best)


def test_without_the_safety_net_only_what_is_asked_for_is_kept(translator):
    line, plain = "eine {name} Katze", translator.translate(["eine {name} Katze"], safety_net=False)
    assert plain == translator.search_lines([Source(line, number=0)], translator.search_setup({"safety_net": False}))
    kept, = translator.protecting(Placeholders()).translate([line], safety_net=False)
    assert kept[0].text.count("{name}") == 1


def test_a_recurrent_model_keeps_tags_and_placeholders(tmp_path):
    text = recipe_text("auto", "type: rnn, d_model: 16, encoder_layers: 1, decoder_layers: 1",
                       "beam_size: 2, max_length: 9")
    model = save_random_model(tmp_path / "model", text, trained_tokenizers(text), 5)
    (best,), = Translator.load(model, "cpu", "fp32").translate(["der <b>Hund</b> läuft {x}"])
    assert best.text.index("<b>") < best.text.index("</b>") and best.text.count("{x}") == 1


def test_a_tag_reaches_the_model_as_in_training_and_is_no_placeholder(translator):
    source = translator.source("<law> ein Hund")
    assert (source.tag, source.text) == ("<law>", "ein Hund")
    same = [translator.translate(["<law> ein Hund"]), translator.translate(["ein Hund"], tag="<law>"),
            translator.translate([Source("ein Hund", tag="<law>")]), translator.tagged("<law>").translate(["ein Hund"])]
    assert same == same[:1] * 4 and "<law>" not in same[0][0][0].text
    assert same[0] != translator.translate(["ein Hund"])


def test_a_tag_that_is_not_known_or_contradicts_a_line_is_refused(translator):
    with pytest.raises(OptionError, match="<law>"):
        translator.translate(["ein Hund"], tag="<news>")
    with pytest.raises(OptionError, match="<law>"):
        list(translator.translate_stream(["ein Hund"], tag="<news>"))


def test_a_tag_of_a_call_replaces_that_of_the_translator_and_the_text_behind_a_tag_is_text(translator):
    two = replace(translator, reader=replace(translator.reader, tags=("<law>", "<news>")))
    assert texts(two.tagged("<news>").translate(["ein Hund"], tag="<law>")) == texts(
        translator.translate(["ein Hund"], tag="<law>"))
    assert two.tagged("<law>").translate(["<law> <news> ein Hund"])


@pytest.mark.parametrize(("text", "words", "expected", "left"), [
    ("<law> a dog", ["<law>", "a", "dog"], "a dog", ["a", "dog"]), ("<law>", ["<law>"], "", []),
    ("<law> <law> a dog", ["<l", "aw>", "<law>", "a", "dog"], "a dog", ["a", "dog"]),
    ("a dog", ["a", "dog"], "a dog", ["a", "dog"]),
    ("lawful <law>", ["lawful", "<law>"], "lawful <law>", ["lawful", "<law>"])])
def test_a_tag_that_the_model_copies_does_not_come_out(text, words, expected, left):
    assert _without_tag(Part(Source("ein Hund", tag="<law>"), 0), text) == expected
    assert [word.text for word in _words_of_text([Word(word, 0.5) for word in words], expected)] == left
    assert _without_tag(Part(Source("<law> ein Hund", tag="<law>"), 0), text) == text


def test_the_command_gives_all_lines_the_tag_of_its_option(model, tmp_path):
    plain = "".join(f"{line}\n" for line in GERMAN)
    tagged = "".join(f"<law> {line}\n" for line in GERMAN)
    expected = run("translate", model, "--tag", "<law>", input=plain)
    assert expected == run("translate", model, input=tagged) == run("translate", model, "--tag", "<law>", input=tagged)
    score = partial(run, "score", model)
    assert score(*scored(tmp_path, plain), "--tag", "<law>") == score(*scored(tmp_path, tagged))


@pytest.mark.parametrize("command", ["translate", "evaluate", "score"])
def test_a_command_refuses_a_tag_that_is_not_known(model, tmp_path, command):
    source, target = scored(tmp_path, "ein Hund\n" * 4)
    files = {"translate": [source], "evaluate": ["--source", source, "--reference", target], "score": [source, target]}
    found = CliRunner().invoke(application([]), list(map(str, [command, model, *files[command], "--tag", "<news>"])))
    assert isinstance(found.exception, OptionError) and "<law>" in str(found.exception)


def scored(folder, text):
    (folder / "source").write_text(text)
    (folder / "target").write_text("".join(f"{line}\n" for line in ENGLISH))
    return folder / "source", folder / "target"


@pytest.mark.slow
def test_workers_keep_tags_placeholders_and_terms_and_know_the_tag(model, translator):
    pool = TranslatorPool(model, 2, "cpu", "fp32")
    with pool:
        one = Translator.load(model, "cpu", "fp32")
        assert texts(pool.translate(LINES)) == texts(one.translate(LINES))
        assert texts(pool.translate(GERMAN, tag="<law>")) == texts(one.translate(GERMAN, tag="<law>"))
        own = Placeholders([r"H\w+"])
        assert texts(pool.protecting(own).translate(["ein Hund"])) == texts(one.protecting(own).translate(["ein Hund"]))
        ours, theirs = pool.align([("ein Hund", "a dog")]), one.align([("ein Hund", "a dog")])
        assert (ours[0] == theirs[0]).all()
