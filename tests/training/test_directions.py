"""Several directions in one model: each source begins with a token of its target language."""

import dataclasses
import json

import pytest
from toy import RECIPE, WORDS, write_corpus
from typer.testing import CliRunner

from seq2seq.cli import application
from seq2seq.data.corpus import read_pairs
from seq2seq.data.preparation import TrainingText, make_tokenizers
from seq2seq.errors import OptionError, RecipeError, TokenizerError
from seq2seq.evaluation.recipe_tests import read_tests
from seq2seq.evaluation.system_comparison import translate_tests
from seq2seq.evaluation.systems import read_system
from seq2seq.inference.load_model import read_model
from seq2seq.interop import ctranslate2, huggingface_export
from seq2seq.interop.huggingface_import import import_model
from seq2seq.recipe import load_recipe
from seq2seq.serve.models import Models
from seq2seq.storage.checkpoints import best_bundle
from seq2seq.tokenizers.line_splitting import OUTSIDE
from seq2seq.tokenizers.source import Source
from seq2seq.training.run import start_training, train
from seq2seq.training.synthetic_text import training_text
from seq2seq.translation.attention_maps import compute_pair_attention
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.translator import Translator, directions_of_model
from seq2seq.translation.worker_processes import TranslatorPool

DIRECTIONS = """
  train:
    - {source: train.en, target: train.de}
    - {source: train.de, target: train.en, languages: {source: de, target: en}}
    - {source: train.en, target: train.la, languages: {source: en, target: la}}
  valid:
    - {source: valid.en, target: valid.de}
    - {source: valid.de, target: valid.en, languages: {source: de, target: en}}
  test:
    en_de: {source: valid.en, target: valid.de}
    de_la: {source: valid.de, target: valid.la, languages: {source: de, target: la}}
"""
LINES = ["one cat sees two", "the dog hears"]


def invoke(arguments, **options):
    return CliRunner().invoke(application([]), arguments, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Text in three languages, a recipe of three directions, and its run."""
    folder = tmp_path_factory.mktemp("directions")
    write_corpus(folder)
    latin = {english: f"{english}us" for english, _ in WORDS}
    for name in ("train", "valid"):
        lines = (folder / f"{name}.en").read_text().splitlines()
        translated = [" ".join(latin[word] for word in line.split()) for line in lines]
        (folder / f"{name}.la").write_text("".join(f"{line}\n" for line in translated))
    (folder / "recipe.yaml").write_text(recipe_text(DIRECTIONS))
    train(load_recipe(folder / "recipe.yaml", ["training.max_steps=5"]), folder / "run")
    return folder


def recipe_text(data):
    head, _, rest = RECIPE.partition("data:")
    return head + "data:" + data + "tokenizer:" + rest.partition("tokenizer:")[2]


def texts(translator, lines=LINES):
    return [best.text for best, *_ in translator.translate(lines)]


def test_every_source_begins_with_the_token_of_its_target_language(folder):
    recipe = load_recipe(folder / "recipe.yaml")
    assert [each.pair for each in recipe.directions] == [("en", "de"), ("de", "en"), ("en", "la")]
    _, stored, tokenizers = read_model(best_bundle(folder / "run"))
    for one in (recipe, stored):
        assert [corpus.languages.target for corpus in one.data.corpora()] == ["de", "en", "la", "de", "en", "de", "la"]
    for corpus in recipe.data.corpora():
        (_, source, _), *_ = read_pairs(recipe, corpus)
        (ids,) = tokenizers.source.encode([source])
        assert tokenizers.source.pieces(ids)[0] == f">>{corpus.languages.target}<<"
        assert ids[0] in tokenizers.target.never_generated_ids


def test_another_default_direction_does_not_change_the_languages_of_the_corpora(folder):
    recipe = load_recipe(folder / "recipe.yaml")
    for target in ("de", "en", "la", "deu"):
        into = recipe.into(target)
        assert into.languages.target == target[:2]
        assert [corpus.languages for corpus in into.data.corpora()] == [
            corpus.languages for corpus in recipe.data.corpora()]
        assert set(into.directions) == set(recipe.directions)
        assert type(recipe).model_validate(into.model_dump()) == into
    # A stored recipe names the languages of a corpus only if they are not those of the recipe.
    assert [corpus["languages"] for corpus in recipe.model_dump()["data"]["train"]] == [
        None, {"source": "de", "target": "en"}, {"source": "en", "target": "la"}]


def test_a_model_of_one_target_language_has_no_tokens(folder):
    (folder / "one.yaml").write_text(recipe_text(
        "\n  train: [{source: train.en, target: train.de}, {source: train.la, target: train.de, languages: "
        "{source: la, target: de}}]\n  valid: {source: valid.en, target: valid.de}\n"))
    recipe = load_recipe(folder / "one.yaml")
    assert recipe.target_languages == ["de"] and len(recipe.directions) == 2
    tokenizers = make_tokenizers(TrainingText.of(recipe))
    assert tokenizers.source.languages == {}
    assert directions_of_model(recipe, tokenizers.source).tokens == []


def test_validation_and_tests_have_scores_of_each_direction(folder):
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    kinds = {record["kind"] for record in records}
    assert {"validation", "validation of en-de", "validation of de-en"} <= kinds
    found = {record["kind"]: record for record in records if record["step"] == 5}
    mean = (found["validation of en-de"]["chrf"] + found["validation of de-en"]["chrf"]) / 2
    assert found["validation"]["chrf"] == pytest.approx(mean)
    metadata = json.loads((best_bundle(folder / "run") / "metadata.json").read_text())
    assert metadata["test"].keys() == {"en_de", "de_la"}


def test_the_target_language_of_a_translator_equals_a_token_in_the_text(folder):
    default, latin = Translator.load(folder / "run"), Translator.load(folder / "run", target_language="la")
    assert (default.languages.target, latin.languages.target) == ("de", "la")
    for token, translator in ((">>de<<", default), (">>la<<", latin)):
        assert texts(translator) == texts(default, [f"{token} {line}" for line in LINES])
        assert texts(translator, [f">>en<< {line}" for line in LINES]) == texts(
            default, [f">>en<< {line}" for line in LINES])
    assert texts(default, [">>la<<", " >>la<< ", ">>la<<\u3000"]) == ["", "", ""]
    long = " ".join(["one cat sees two dog."] * 50)
    (found,), (expected,) = (
        latin.translate([long], max_length=9), default.translate([f">>la<< {long}"], max_length=9))
    assert found[0].parts == expected[0].parts > 1 and found[0].text == expected[0].text
    pairs = [("one cat", "oneus catus")]
    assert pair_scores(latin, pairs) == pair_scores(default, [(">>la<< one cat", "oneus catus")])


def test_an_added_token_is_outside_of_the_line(folder):
    translator = Translator.load(folder / "run", target_language="la")
    line = "one cat  sees"
    (_, pair), = compute_pair_attention(translator, [(line, "oneus")])
    (_, written), = compute_pair_attention(translator, [(f">>la<< {line}", "oneus")])
    assert (pair.source.text, written.source.text) == (line, f">>la<< {line}")
    assert pair.source.pieces == written.source.pieces and pair.source.pieces[0] == ">>la<<"
    assert pair.source.spans[0] == OUTSIDE and written.source.spans[0] == (0, 6)
    for side in (pair.source, written.source):
        assert all(0 <= begin <= end <= len(side.text) for begin, end in side.spans if (begin, end) != OUTSIDE)
        found = "".join(side.text[begin:end] for begin, end in side.spans)
        assert found.replace(" ", "") == side.text.replace(" ", "")


def test_the_command_line_translates_and_evaluates_in_a_direction(folder, tmp_path):
    (tmp_path / "text.en").write_text("".join(f"{line}\n" for line in LINES))
    command = ["translate", str(folder / "run"), str(tmp_path / "text.en"), "--target-language"]
    result = invoke([*command, "la", "--output", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out").read_text().splitlines() == texts(Translator.load(folder / "run", target_language="la"))
    with pytest.raises(OptionError):
        invoke([*command, "xh"], catch_exceptions=False)
    arguments = ["evaluate", str(folder / "run"), "--source", str(folder / "valid.de"), "--reference",
                 str(folder / "valid.la"), "--target-language", "la", "--format", "json", "--precision", "fp32"]
    found = json.loads(invoke(arguments).stdout)
    metadata = json.loads((best_bundle(folder / "run") / "metadata.json").read_text())
    assert found["chrf"]["value"] == pytest.approx(metadata["test"]["de_la"]["chrf"]["value"])


@pytest.mark.slow
def test_a_glossary_is_used_only_for_test_sets_in_its_direction(folder, tmp_path, capsys):
    (tmp_path / "terms.tsv").write_text("cat\tKatze\nHund\tdoggy\nKatze\tfeles\n")
    command = ["evaluate", str(folder / "run"), "--format", "json", "--precision", "fp32"]
    plain = json.loads(invoke(command).stdout)
    result = invoke([*command, "--glossary", str(tmp_path / "terms.tsv")])
    found = json.loads(result.stdout)
    assert list(found) == list(plain) == ["en_de", "de_la"]
    assert "terms" in found["en_de"] and found["de_la"] == plain["de_la"]
    assert "the glossary is for en to de; de_la is translated without it" in result.stderr


def test_scoring_and_rescoring_add_the_token_of_the_target_language(folder, tmp_path):
    (tmp_path / "text.en").write_text("one cat\n")
    (tmp_path / "tagged.en").write_text(">>la<< one cat\n")
    (tmp_path / "text.la").write_text("oneus catus\n")
    score = ["score", str(folder / "run")]
    expected = invoke([*score, str(tmp_path / "tagged.en"), str(tmp_path / "text.la")]).stdout
    found = invoke([*score, str(tmp_path / "text.en"), str(tmp_path / "text.la"), "--target-language", "la"]).stdout
    assert found == expected and float(found) < 0
    entry = {"translation": "oneus catus", "score": -1.0, "log_probability": -1.0, "tokens": 3}
    other = {**entry, "translation": "oneus", "tokens": 2}
    outputs = []
    for source, option in (("one cat", ["--target-language", "la"]), (">>la<< one cat", [])):
        result = invoke([
            "rescore", "--model", str(folder / "run"), "--weight", "1", "--format", "jsonl", *option],
            input=json.dumps({"source": source, "n_best": [entry, other]}) + "\n")
        outputs.append({one["translation"]: one["score"] for one in json.loads(result.stdout)["n_best"]})
    assert outputs[0] == outputs[1] and len(outputs[0]) == 2


@pytest.mark.slow
def test_another_model_reads_the_same_test_sets_without_language_tokens(folder, tmp_path):
    (folder / "alone.yaml").write_text(RECIPE)
    train(load_recipe(folder / "alone.yaml", ["training.max_steps=1"]), folder / "alone")
    recipe = load_recipe(folder / "recipe.yaml")
    asked = []

    def load(path):
        class Asked(Translator):
            def translate(self, lines, **options):
                asked.append((path.name, self.languages.target, [line.text for line in lines]))
                return super().translate(lines, **options)

        loaded = Translator.load(path)
        return Asked(**{field.name: getattr(loaded, field.name) for field in dataclasses.fields(loaded)})

    tests = read_tests([folder / "run"], None, [], None)
    translate_tests([folder / "run", folder / "alone"], tests, load)
    plain = {name: [source.text for _, source, _ in read_pairs(recipe, spec)]
             for name, spec in recipe.data.test.items()}
    assert asked == [("run", "de", plain["en_de"]), ("run", "la", plain["de_la"]),
                     ("alone", "de", plain["en_de"]), ("alone", "de", plain["de_la"])]
    assert [test.sources for test in tests] == list(plain.values())
    system = read_system(folder / "run", tests, precision="fp32", robustness=True)
    expected = texts(Translator.load(folder / "run", precision="fp32", target_language="la"), plain["de_la"])
    assert system.translations["de_la"] == expected
    metadata = json.loads((best_bundle(folder / "run") / "metadata.json").read_text())
    assert system.slices["de_la"]["clean"] == pytest.approx(metadata["test"]["de_la"]["bleu"]["value"])


def test_a_line_with_the_token_of_an_unknown_language_is_translated_with_a_warning(folder):
    text = f">>fr<< {LINES[0]}\n>>la<< {LINES[0]}\n"
    result = invoke(["translate", str(folder / "run")], input=text)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr.count(">>fr<< is not a target language of the model, which has >>de<<, >>en<<, >>la<<") == 1
    assert "standard input:1:" in result.stderr
    assert ">>la<< is not" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("export", [ctranslate2.export_model, huggingface_export.export_model])
def test_an_export_translates_in_all_directions(folder, tmp_path, export):
    """The export is refused if a translation differs."""
    run = folder / "longer"
    if not run.exists():
        settings = ["training.max_steps=300", "model.d_model=32", "training.validate_every=300"]
        train(load_recipe(folder / "recipe.yaml", settings), run)
    lines = [f"{token}{line}\n" for token in ("", ">>la<< ", ">>en<< ") for line in LINES]
    (tmp_path / "lines").write_text("".join(lines))
    export(run, tmp_path / "export", source=tmp_path / "lines")


@pytest.mark.slow
def test_an_imported_export_has_the_same_directions(folder, tmp_path):
    run = folder / "longer"
    if not run.exists():
        settings = ["training.max_steps=300", "model.d_model=32", "training.validate_every=300"]
        train(load_recipe(folder / "recipe.yaml", settings), run)
    huggingface_export.export_model(run, tmp_path / "export")
    import_model(str(tmp_path / "export"), tmp_path / "imported")
    import_model(str(tmp_path / "export"), tmp_path / "latin", target_language="la")
    ours, again = Translator.load(run), Translator.load(tmp_path / "imported")
    assert again.directions == ours.directions
    assert Translator.load(tmp_path / "latin").directions.chosen == ours.into("la").languages
    for target in ("de", "en", "la"):
        assert again.into(target).encode(LINES) == ours.into(target).encode(LINES)
        assert texts(again.into(target)) == texts(ours.into(target))


@pytest.mark.slow
@pytest.mark.usefixtures("workers_are_processes")
def test_workers_translate_into_the_language_of_each_line(folder):
    lines = [f"{token}{line}" for token in ("", ">>la<< ", ">>en<< ") for line in LINES]
    expected = texts(Translator.load(folder / "run", "cpu", "fp32"), lines)
    with TranslatorPool(folder / "run", 2, "cpu", "fp32") as pool:
        assert texts(pool, lines) == expected
    with TranslatorPool(folder / "run", 2, "cpu", "fp32", target_language="la") as pool:
        assert texts(pool, LINES) == expected[2:4]


def test_lines_of_several_languages_are_translated_as_each_of_them_alone(folder):
    translator = Translator.load(folder / "run", "cpu", "fp32")
    lines = [Source(line, language=language) for line in LINES for language in ("la", "", "en", "deu")]
    progress = []
    found = translator.translate(lines, n_best=2, progress=progress.append)
    alone = [translator.translate([line], n_best=2)[0] for line in lines]
    assert [[one.text for one in n_best] for n_best in found] == [[one.text for one in n_best] for n_best in alone]
    assert sum(progress) == len(lines)


def test_fine_tuning_and_ensembles_need_the_languages_of_the_model(folder, tmp_path):
    one = RECIPE.replace("tokenizer: {vocab_size: auto}", "").replace("languages: {source: en, target: de}",
                                                                     "languages: {source: en, target: xh}")
    (folder / "one.yaml").write_text(one.replace("training:", "training:\n  start_from: run"))
    with pytest.raises(TokenizerError, match="language tokens for de, en, la, but not for xh"):
        start_training(load_recipe(folder / "one.yaml"), tmp_path / "run")
    (folder / "one.yaml").write_text(RECIPE.replace("{vocab_size: auto}", "{taken_from: run}"))
    train(load_recipe(folder / "one.yaml", ["training.max_steps=1"]), folder / "german")
    assert Translator.load(folder / "run", ensemble=[folder / "german"]).directions.tokens
    with pytest.raises(OptionError, match="german translates into de, not into la"):
        Translator.load(folder / "run", ensemble=[folder / "german"], target_language="la")


def test_a_server_offers_every_direction_of_a_model(folder):
    models = Models.load([folder / "run"])
    assert set(models.directions.direct) == {("en", "de"), ("de", "en"), ("en", "la")}
    assert len(models.describe()) == 3


def test_a_model_of_several_directions_generates_text_for_another(folder, tmp_path):
    (folder / "student.yaml").write_text(RECIPE.replace(
        "[{source: train.en, target: train.de}]", "[{source: train.en, target: train.de}, {source: valid.en, "
        "translated_by: run, languages: {source: en, target: la}}]"))
    start_training(load_recipe(folder / "student.yaml"), tmp_path / "run")
    written, = (tmp_path / "run" / "synthetic").glob("*.txt")
    lines = (folder / "valid.en").read_text().splitlines()
    assert written.read_text().splitlines() == texts(
        Translator.load(folder / "run", precision="reference", target_language="la"), lines)
    both = ", ".join(f"{{source: valid.en, translated_by: run, languages: {{source: en, target: {code}}}}}"
                     for code in ("de", "la"))
    (folder / "student.yaml").write_text(RECIPE.replace("source: train.en, target: train.de}]",
                                                        f"source: train.en, target: train.de}}, {both}]"))
    training_text(load_recipe(folder / "student.yaml"), tmp_path / "both")
    assert len([*(tmp_path / "both" / "synthetic").glob("*.txt")]) == 2


def test_a_model_of_several_directions_does_not_generate_text_in_another_one(folder, tmp_path):
    (folder / "wrong.yaml").write_text(RECIPE.replace("source: en, target: de", "source: la, target: en").replace(
        "[{source: train.en, target: train.de}]", "[{source: valid.la, translated_by: run}]").replace(
        "source: valid.en, target: valid.de", "source: valid.la, target: valid.en"))
    with pytest.raises(RecipeError):
        training_text(load_recipe(folder / "wrong.yaml"), tmp_path)


@pytest.mark.parametrize(("old", "new", "key"), [
    ("languages: {source: en, target: la}", "languages: {source: en, target: la}, tag: '>>la<< <BT>'",
     "data.train.2.tag"),
    ("languages: {source: en, target: la}", "languages: {source: en, target: la}, tag: '>>en<<'", "data.train.2.tag"),
    ("languages: {source: de, target: la}", "languages: {source: de, target: xh}", "data.test.de_la"),
    ("languages: {source: de, target: en}", "languages: {target: en}", "data.train.1.languages"),
    ("languages: {source: de, target: en}", "languages: German", "data.train.1.languages"),
])
def test_wrong_languages_are_errors_with_their_line(folder, old, new, key):
    (folder / "wrong.yaml").write_text(recipe_text(DIRECTIONS.replace(old, new)))
    with pytest.raises(RecipeError, match=rf"wrong.yaml:\d+: {key}: "):
        load_recipe(folder / "wrong.yaml")


def test_two_codes_of_one_target_language_are_refused(folder):
    (folder / "codes.yaml").write_text(recipe_text(
        "\n  train: [{source: train.en, target: train.de}, {source: train.la, target: train.de, languages: "
        "{source: la, target: deu}}]\n  valid: {source: valid.en, target: valid.de}\n"))
    with pytest.raises(TokenizerError, match="de and deu"):
        make_tokenizers(TrainingText.of(load_recipe(folder / "codes.yaml")))
