"""Models of several directions: in every command, the first piece of a source is the token of its target language.

The sources of each direction begin with a word that names the target language, such as `tola`. So every encoded text
shows which token it must have, wherever it comes from.
"""

import json
from pathlib import Path

import pytest
from toy import RECIPE, WORDS, write_corpus
from typer.testing import CliRunner

from seq2seq.cli import application
from seq2seq.documents.translate_document import translate_document
from seq2seq.recipe import load_recipe
from seq2seq.serve.models import Group, Models, RequestOptions
from seq2seq.tokenizers.vocabulary import Vocabulary, as_line
from seq2seq.training.run import train
from seq2seq.translation.translator import Translator

TWO = [("en", "de"), ("en", "la")]
BOTH_WAYS = [("en", "de"), ("de", "en")]
THREE = [("en", "de"), ("de", "en"), ("en", "la")]
FOUR = [("en", "de"), ("de", "en"), ("en", "la"), ("la", "en")]


def write_texts(folder, directions):
    write_corpus(folder)
    for name in ("train", "valid"):
        english = [line.split() for line in (folder / f"{name}.en").read_text().splitlines()]
        by_language = {"en": english, "de": [[dict(WORDS)[word] for word in line] for line in english],
                       "la": [[f"{word}us" for word in line] for line in english]}
        for source, target in directions:
            for side, lines in (("source", [[f"to{target}", *line] for line in by_language[source]]),
                                ("target", by_language[target])):
                (folder / f"{name}.{source}-{target}.{side}.txt").write_text(
                    "".join(f"{' '.join(line)}\n" for line in lines))


def recipe_text(directions, own_languages):
    """Return a recipe. own_languages: True if all corpora name their languages, False if only the others than those of
    the first direction do."""
    def corpus(name, source, target):
        has_own = own_languages or (source, target) != directions[0]
        own = f", languages: {{source: {source}, target: {target}}}" if has_own else ""
        return f"{{source: {name}.{source}-{target}.source.txt, target: {name}.{source}-{target}.target.txt{own}}}"

    train, valid = ([corpus(name, *each) for each in directions] for name in ("train", "valid"))
    tests = [f"{source}_{target}: {corpus('valid', source, target)}" for source, target in directions]
    source, target = directions[0]
    head, _, rest = RECIPE.replace("{source: en, target: de}", f"{{source: {source}, target: {target}}}").partition(
        "data:")
    rest = rest.partition("tokenizer:")[2].replace("validate_every: 5", "validate_every: 2").replace(
        "max_steps: 11", "max_steps: 2")
    return (f"{head}data:\n  train: [{', '.join(train)}]\n  valid: [{', '.join(valid)}]\n  test: {{{', '.join(tests)}}}"
            f"\ntokenizer:{rest}")


class Spy:
    """Counts the encoded sources of each target language, and remembers those with a wrong first piece."""

    def __init__(self, monkeypatch, has_tokens=True):
        self.counts, self.wrong, self.has_tokens = {}, [], has_tokens
        for name in ("encode", "sample"):
            original = getattr(Vocabulary, name)

            def recording(vocabulary, lines, *arguments, original=original, **options):
                found = original(vocabulary, lines, *arguments, **options)
                for line, ids in zip(lines, found, strict=True):
                    self._check(vocabulary, as_line(line), ids)
                return found

            monkeypatch.setattr(Vocabulary, name, recording)

    def _check(self, vocabulary, text, ids):
        word = text.split(maxsplit=1)[0] if text.strip() else ""
        if word not in ("tode", "toen", "tola"):
            return
        self.counts[word[2:]] = self.counts.get(word[2:], 0) + 1
        first = [piece for piece in vocabulary.pieces(ids) if piece.startswith(">>")]
        if first != ([f">>{word[2:]}<<"] if self.has_tokens else []) or ids[0] not in (
                vocabulary.languages.values() if self.has_tokens else ids):
            self.wrong.append((text, vocabulary.pieces(ids)))

    def expect(self, *targets):
        """Check that sources of exactly these languages were encoded since the last call, all of them rightly."""
        assert self.wrong == []
        assert set(self.counts) == set(targets)
        self.counts.clear()


def run(*arguments, input=None):
    result = CliRunner().invoke(application([]), list(map(str, arguments)), input=input)
    assert result.exit_code == 0, result.output
    assert "is not a target language" not in result.stderr
    return result.stdout


@pytest.fixture
def spy(monkeypatch):
    return Spy(monkeypatch)


def trained(folder, directions, own_languages):
    write_texts(folder, directions)
    (folder / "recipe.yaml").write_text(recipe_text(directions, own_languages))
    train(load_recipe(folder / "recipe.yaml"), folder / "run")
    return folder / "run"


def run_commands(model, source, target, spy, folder, targets):
    """Run the commands that take a model and text in one direction. targets: all target languages of the model."""
    files = [folder / f"valid.{source}-{target}.{side}.txt" for side in ("source", "target")]
    line = files[0].read_text().splitlines()[0]
    choice = ("--target-language", target)
    long = " ".join([f"{line}."] * 40)
    translated = run("translate", model, files[0], *choice, "--precision", "fp32")
    spy.expect(target)
    assert translated.splitlines() == [best.text for best, *_ in Translator.load(
        model, precision="fp32", target_language=target).translate(files[0].read_text().splitlines())]
    run("translate", model, *choice, input=f"{line} %s 50 %\n")
    run("translate", model, *choice, "--sampling", "--format", "jsonl", input=f"{line}\n")
    run("translate", model, *choice, "--ensemble", model, input=f"{line}\n")
    spy.expect(target)
    (folder / "page.md").write_text(f"# {line}\n\n{line}, *{line.split()[-1]}*\n")
    run("translate", model, folder / "page.md", *choice)
    translate_document(Translator.load(model, target_language=target), folder / "page.md")
    run("score", model, *files, *choice)
    spy.expect(target)
    run("align", model, *files, *choice)
    spy.expect(target)
    n_best = [{"translation": text, "score": -1.0, "log_probability": -1.0, "tokens": 2} for text in ("ein", "eins")]
    run("rescore", "--model", model, "--weight", "1", *choice, input=json.dumps(
        {"source": line, "n_best": n_best}) + "\n")
    spy.expect(target)
    run("attention", model, "--source", line, "--output", folder / "maps.html", *choice)
    spy.expect(target)
    run("evaluate", model, "--source", files[0], "--reference", files[1], "--target-language", target)
    spy.expect(target)
    run("compare", model, model, "--source", files[0], "--reference", files[1], "--target-language", target,
        "--samples", "10")
    run("translate", model, *choice, "--max-length", "5", input=f"{long}\n")
    spy.expect(target)
    run("report", model, "--source", files[0], "--reference", files[1], "--target-language", target, "--output",
        folder / "report.html")
    spy.expect(*targets)                                                        # calibrated on the validation text


def run_commands_on_test_sets(model, targets, spy, folder):
    run("evaluate", model)
    spy.expect(*targets)
    run("compare", model, model, "--samples", "10")
    spy.expect(*targets)
    run("report", model, "--robustness", "--output", folder / "report.html")
    spy.expect(*targets)


def serve(model, directions, spy):
    models = Models.load([model])
    assert set(models.directions.direct) == set(directions)
    for source, target in directions:
        for options in (RequestOptions(), RequestOptions(document=True)):
            models.translate(Group(source, target, options), [f"to{target} >>de<< >>en<< >>la<<", f"to{target} %s"])
        models.translate(Group(source, target, None), [(f"to{target} one", "one")])
        spy.expect(target)


def test_every_command_knows_the_direction_of_each_source(tmp_path, spy):
    model = trained(tmp_path, THREE, False)
    spy.expect("de", "en", "la")
    run_commands(model, "en", "la", spy, tmp_path, {"de", "en", "la"})


@pytest.mark.slow
@pytest.mark.parametrize("own_languages", [False, True], ids=["default", "own"])
@pytest.mark.parametrize("directions", [TWO, BOTH_WAYS, THREE, FOUR], ids=["two", "both_ways", "three", "four"])
def test_every_command_knows_every_direction(directions, own_languages, tmp_path, spy):
    targets = {target for _, target in directions}
    model = trained(tmp_path, directions, own_languages)
    spy.expect(*targets)
    for source, target in directions:
        run_commands(model, source, target, spy, tmp_path, targets)
    run_commands_on_test_sets(model, targets, spy, tmp_path)
    serve(model, directions, spy)


def test_averages_and_generated_text_know_the_direction_of_each_source(tmp_path, spy):
    model = trained(tmp_path, TWO, False)
    spy.expect("de", "la")
    run("average", model, "--output", tmp_path / "average")
    run("translate", tmp_path / "average", "--target-language", "la", input="tola one\n")
    spy.expect("la")
    text = recipe_text(TWO, False).replace("300", "330")
    generated = ("{source: valid.en-la.source.txt, translated_by: run, languages: {source: en, target: la}}, "
                 "{source: valid.en-de.source.txt, translated_by: run}, ")
    (tmp_path / "second.yaml").write_text(text.replace("train: [", f"train: [{generated}"))
    train(load_recipe(tmp_path / "second.yaml"), tmp_path / "second")
    assert len(list((tmp_path / "second").rglob("synthetic/*.txt"))) >= 2
    spy.expect("de", "la")


def fine_tuning_recipe(folder, source, target, more=""):
    """Write a recipe of one direction, and return its path."""
    text = recipe_text([(source, target)], False).replace("training:", f"training:\n  {more}").replace(
        "tokenizer: {vocab_size: auto}\n", "")
    (folder / "one.yaml").write_text("\n".join(
        line for line in text.splitlines() if not line.startswith("model:")) + "\n")
    return folder / "one.yaml"


def test_fine_tuning_on_one_direction_inherits_the_token(tmp_path, spy):
    trained(tmp_path, TWO, False)
    spy.expect("de", "la")
    recipe = load_recipe(fine_tuning_recipe(tmp_path, "en", "la", "start_from: run"))
    train(recipe, tmp_path / "one")
    run("translate", tmp_path / "one", input="tola one\n")
    run("evaluate", tmp_path / "one")
    # The token of a language that the model no longer has is text.
    run("translate", tmp_path / "one", input="tola >>de<< one\n")
    assert Translator.load(tmp_path / "one").directions.codes == ("la",)
    spy.expect("la")


def test_a_model_with_the_vocabulary_but_another_language_has_no_token(tmp_path, monkeypatch):
    trained(tmp_path, TWO, False)
    write_texts(tmp_path, [("la", "en")])
    spy = Spy(monkeypatch, has_tokens=False)
    text = recipe_text([("la", "en")], False).replace("{vocab_size: auto}", "{taken_from: run}")
    (tmp_path / "other.yaml").write_text(text)
    train(load_recipe(tmp_path / "other.yaml"), tmp_path / "other")
    run("translate", tmp_path / "other", input="toen >>de<< >>en<<\n")
    spy.expect("en")


def test_a_text_never_changes_the_direction_of_a_document(tmp_path):
    model = trained(tmp_path, TWO, False)
    texts = ["one >>la<< two", ">>la<< one", ">>xx<< one", ">><< one", ">>de<<"]
    page = Path(tmp_path / "page.md")
    page.write_text("\n\n".join(texts) + "\n")
    encoded = []
    translator = Translator.load(model)
    original = Vocabulary.encode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Vocabulary, "encode", lambda self, lines, *rest, **more: encoded.extend(
            result := original(self, lines, *rest, **more)) or result)
        translate_document(translator, page)
        run("translate", model, page)
    tokens = translator.tokenizers.source.languages
    assert encoded and {ids[0] for ids in encoded if ids and ids[0] in tokens.values()} == {tokens["de"]}
    assert not any(tokens["la"] in ids for ids in encoded)
