"""Documents as context, from the recipe to the translation."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from toy import RECIPE, WORDS

from seq2seq.cli import main
from seq2seq.data.block_processes import BlockProcesses
from seq2seq.data.corpus import Counts, as_lines, read_pairs
from seq2seq.data.preparation import TrainingText, cleaned, kept_pairs, prepare, prepared_text, sampled_pairs
from seq2seq.documents.translate_document import translate_document
from seq2seq.errors import CheckpointError, FormatError, OptionError, RecipeError
from seq2seq.evaluation.recipe_tests import read_tests
from seq2seq.evaluation.rescoring import rescore
from seq2seq.evaluation.system_comparison import translate_tests
from seq2seq.interop import argos
from seq2seq.recipe import Corpus, DecodingSection, Languages, load_recipe
from seq2seq.serve.models import MachineOptions, Models
from seq2seq.storage.checkpoints import best_bundle
from seq2seq.storage.tokenizer_files import load_tokenizers
from seq2seq.tokenizers.context import SEPARATOR_ID
from seq2seq.tokenizers.language_token import Directions
from seq2seq.tokenizers.line_reader import LineReader
from seq2seq.tokenizers.source import Source, as_source
from seq2seq.tokenizers.vocabulary import as_line
from seq2seq.training import synthetic_text
from seq2seq.training.run import train
from seq2seq.training.validation import Validation
from seq2seq.translation.attention_maps import compute_pair_attention
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.translator import Translator
from seq2seq.translation.unfinished_output import UnfinishedOutput
from seq2seq.translation.worker_processes import TranslatorPool

DOCUMENTS = [["one cat sees two", "the dog hears", "it sees red"], ["two cat", "it hears one cat"]]
LINES = [line for document in DOCUMENTS for line in (*document, "")]


def recipe_text(context="concatenate"):
    return RECIPE.replace("  test:", "  context: 2\n  test:").replace("model: {", f"model: {{context: {context}, ")


def finished_run(folder, context, steps):
    """Write documents of five lines, a recipe with their context, and its run."""
    random = np.random.default_rng(2)
    for name, count in (("train", 24), ("valid", 3)):
        chosen = [[[] if number % 6 == 5 else [WORDS[index] for index in random.integers(len(WORDS), size=4)]
                   for number in range(6)] for _ in range(count)]
        for side, language in enumerate(("en", "de")):
            (folder / f"{name}.{language}").write_text("".join(
                " ".join(word[side] for word in line) + "\n" for document in chosen for line in document))
    (folder / "recipe.yaml").write_text(recipe_text(context))
    train(load_recipe(folder / "recipe.yaml", [f"training.max_steps={steps}"]), folder / "run")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("concatenated"), "concatenate", 11)


@pytest.fixture(scope="module")
def translator(folder):
    return Translator.load(folder / "run", "cpu", "fp32", 1)


@pytest.fixture(scope="module")
def hierarchical(tmp_path_factory):
    folder = finished_run(tmp_path_factory.mktemp("hierarchical"), "hierarchical", 5)
    return Translator.load(folder / "run", "cpu", "fp32", 1)


@pytest.fixture(params=["translator", "hierarchical"])
def each_translator(request):
    return request.getfixturevalue(request.param)


def results(n_best):
    return [(best.text, round(best.score, 4)) for best, *_ in n_best]


def test_each_source_follows_the_two_sentences_before_it_in_its_document(folder, tmp_path):
    recipe = load_recipe(folder / "recipe.yaml")
    lines = (folder / "valid.en").read_text().splitlines()
    assert [source for _, source, _ in as_lines(read_pairs(recipe, recipe.data.valid[0]))][:7] == [
        f"␞ {lines[0]}", f"{lines[0]}␞ {lines[1]}", f"{lines[0]}␞ {lines[1]}␞ {lines[2]}",
        f"{lines[1]}␞ {lines[2]}␞ {lines[3]}", f"{lines[2]}␞ {lines[3]}␞ {lines[4]}", "", f"␞ {lines[6]}"]
    text = TrainingText.of(recipe)
    with BlockProcesses(1) as processes:
        kept = kept_pairs(text, (True, True), tmp_path, processes)
    assert not any("␞" in source for source, _ in sampled_pairs(text, kept))


def test_a_fifth_of_the_training_pairs_has_an_empty_context(folder, tmp_path):
    recipe = load_recipe(folder / "recipe.yaml")
    prepared = prepare(TrainingText.of(recipe), load_tokenizers(folder / "run" / "tokenizer"), tmp_path, 1)
    source = prepared.corpus.source
    separators = [int((source.ids[begin:end] == SEPARATOR_ID).sum())
                  for begin, end in zip(source.offsets[:-1], source.offsets[1:], strict=True)]
    assert len(separators) == 120 and set(separators) == {1, 2}
    # Of each document of five lines, two have one separator; and some of the others.
    assert 48 + 5 < separators.count(1) < 48 + 25


def test_a_column_can_say_where_a_document_begins(folder, tmp_path):
    rows = [("one", "eins", 1), ("two", "zwei", 1), ("red", "rot", 2), ("blue", "blau", 2)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\t{number}\n" for source, target, number in rows))
    recipe = load_recipe(folder / "recipe.yaml", [
        f"data.valid={{file: {tmp_path / 'pairs.tsv'}, source: 1, target: 2, document: 3}}"])
    assert [source for _, source, _ in as_lines(read_pairs(recipe, recipe.data.valid[0]))] == [
        "␞ one", "one␞ two", "␞ red", "red␞ blue"]


def test_a_tag_that_looks_like_a_language_token_stands_after_the_context(folder, tmp_path):
    recipe = load_recipe(folder / "recipe.yaml", ["data.train.0.tag='>>bt<< x'", "tokenizer.subword_sampling=0.1"])
    text = TrainingText.of(recipe)
    prepared = prepare(text, load_tokenizers(folder / "run" / "tokenizer"), tmp_path, 1)
    found = list(prepared_text(text, prepared.directory))
    plain = [source for _, source, _ in cleaned(load_recipe(folder / "recipe.yaml").data.train[0], recipe, Counts())]
    assert [source.text for source, _ in found] == [source.text for source in plain if source.text]
    lines = [as_line(source) for source, _ in found]
    assert all("\u241e >>bt<< x " in line and line.count(">>bt<<") == 1 for line in lines)
    assert lines == (prepared.directory / "source.txt").read_text().splitlines()


def test_the_key_of_a_document_may_be_beside_the_texts(folder, tmp_path):
    rows = [("one", "eins", "a"), ("two", "zwei", "a"), ("red", "rot", "b")]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(
        {"id": document, "translation": {"en": source, "de": target}}) + "\n" for source, target, document in rows))
    recipe = load_recipe(folder / "recipe.yaml", [
        f"data.valid={{file: {tmp_path / 'pairs.jsonl'}, source: en, target: de, document: id}}"])
    assert [source for _, source, _ in as_lines(read_pairs(recipe, recipe.data.valid[0]))] == [
        "␞ one", "one␞ two", "␞ red"]


def test_lines_are_translated_in_their_context(each_translator):
    translator = each_translator
    together = results(translator.translate(LINES))
    explicit = [Source(text, context=tuple(document[max(0, number - 2):number]))
                for document in DOCUMENTS for number, text in enumerate(document)]
    assert together[:3] + together[4:6] == results(translator.translate(explicit))
    # Only the last line of the first document changes with a line before it.
    changed = results(translator.translate([LINES[0].replace("one", "blue"), *LINES[1:]]))
    assert changed[1:3] != together[1:3] and changed[4:] == together[4:]
    assert results(translator.translate(["one cat sees two␞ the dog hears␞ it sees red"])) == [together[2]]
    assert results(translator.translate_stream(LINES, 2)) == together
    assert results(translator.translate_stream(
        [Source(LINES[2], context=(LINES[0], LINES[1])), *LINES[3:]], 2)) == together[2:]


def test_a_context_that_does_not_fit_loses_its_oldest_sentences(each_translator):
    long = " ".join(["cat"] * 300)
    assert results(each_translator.translate([Source("it sees", context=(long, "one cat"))])) == results(
        each_translator.translate([Source("it sees", context=("one cat",))]))


def test_the_command_reads_the_context_of_each_line(folder, translator, tmp_path, capfd):
    expected = [text for text, _ in results(translator.translate(LINES))]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    command = ["translate", str(folder / "run"), str(tmp_path / "in.txt"), "--precision", "fp32", "--device", "cpu"]
    assert main(command) == 0
    assert capfd.readouterr().out.splitlines() == expected


@pytest.mark.slow
@pytest.mark.usefixtures("workers_are_processes")
def test_workers_read_the_context_of_each_line(folder, translator):
    with TranslatorPool(folder / "run", 2, "cpu", "fp32") as pool:
        assert pool.reader.context == 2
        found = [best.text for best, *_ in pool.translate_stream(LINES)]
    assert found == [text for text, _ in results(translator.translate(LINES))]


def test_equal_sentences_of_a_document_have_their_own_contexts(translator):
    page = b"<p>one cat sees two. It hears. Blue dog and three. It hears.</p>"
    sentences = ["one cat sees two.", "It hears.", "Blue dog and three.", "It hears."]
    translated = translate_document(translator, page, "html").decode()
    parts = [text for text, _ in results(translator.translate(sentences))]
    assert translated == f"<p>{' '.join(parts)}</p>"


def test_a_server_translates_a_text_in_context_and_texts_apart(folder, translator):
    from seq2seq.serve.models import Group, RequestOptions
    from seq2seq.tokenizers.context import in_context

    models = Models.load([folder / "run"], MachineOptions("cpu", "fp32"))
    assert models.context(("en", "de")) == 2
    expected = results(translator.translate(DOCUMENTS[0])) + results(translator.translate(DOCUMENTS[1]))
    batch = [*in_context(DOCUMENTS[0], 2), *in_context(DOCUMENTS[1], 2)]
    assert results(models.translate(Group("en", "de", RequestOptions()), batch)) == expected


def test_the_validation_loss_leaves_out_blank_lines_and_shortens_long_contexts(folder):
    recipe = load_recipe(folder / "recipe.yaml")
    tokenizers = load_tokenizers(folder / "run" / "tokenizer")
    whole = Validation(recipe, tokenizers)
    assert (len(whole.pairs), len(whole.corpus.source.lengths)) == (18, 15)
    longest = int(whole.corpus.source.lengths.max())
    short = Validation(load_recipe(folder / "recipe.yaml", [f"data.cleaning.max_pieces={longest - 2}"]), tokenizers)
    assert len(short.corpus.source.lengths) == 15
    assert short.corpus.source.lengths.max() < longest


def test_the_score_of_a_line_is_that_of_its_translation_in_context(folder, translator, tmp_path, capfd):
    best = [n_best[0] for n_best in translator.translate(LINES)]
    files = tmp_path / "source", tmp_path / "target"
    for path, lines in zip(files, (LINES, [one.text for one in best]), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    assert main(["score", str(folder / "run"), *map(str, files), "--device", "cpu", "--threads", "1"]) == 0
    scores = list(map(float, capfd.readouterr().out.split()))
    texts = [number for number, line in enumerate(LINES) if line]
    assert [scores[number] for number in texts] == pytest.approx([best[number].log_probability for number in texts],
                                                                 abs=1e-4)
    alone = pair_scores(translator, [(LINES[2], best[2].text)])[0].log_probability
    assert alone != pytest.approx(scores[2], abs=1e-4)
    rescored = rescore(LINES, [[one, one] if one.text else [one] for one in best], [(translator, 1.0)])
    assert [rescored[number][0].log_probabilities[0] for number in texts] == pytest.approx(
        [scores[number] for number in texts], abs=1e-4)


def test_each_of_two_systems_reads_its_own_context(folder):
    read = {}

    def load(path):
        texts = read.setdefault(path.name, [])
        one = SimpleNamespace(context=2 if path.name == "run" else 0, languages=SimpleNamespace(target="de"),
                              precision="fp32", into=lambda target, source: one, directory=None,
                              translate=lambda lines: texts.extend(map(as_source, lines)) or [
                                  [SimpleNamespace(text=f"eins {as_source(line).text}")] for line in lines])
        return one

    best = best_bundle(folder / "run")
    tests = read_tests([folder / "run"], None, [], None)
    translate_tests([folder / "run", best], tests, load)
    plain = (folder / "valid.en").read_text().splitlines()
    assert [(source.text, source.context) for source in read[best.name]] == [(line, None) for line in plain]
    assert [source.text for source in read["run"]] == plain
    assert sum(source.context is not None for source in read["run"]) == 15
    test, = tests
    assert (test.sources, test.sources_for(0), test.sources_for(2)) == (plain, read[best.name], read["run"])


def test_an_interrupted_back_translation_reads_the_same_contexts(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic_text, "BLOCK_LINES", 2)
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in LINES * 2))

    def translate(requests, **options):
        """Give the requests as translations."""
        return [[SimpleNamespace(text=f"{request.context} {request.text}", faults=())] for request in requests]

    languages = Languages(source="en", target="de")
    translator = SimpleNamespace(reader=LineReader(Directions(languages, (languages,), ()), context=2),
                                 decoding=DecodingSection(), precision="fp32", translate=translate, languages=languages)
    spec = Corpus(source=str(tmp_path / "text"), translated_by=(str(folder / "run"),))

    def translation(name):
        synthetic_text._translate(spec, [folder / "run"], tmp_path / "text", tmp_path / name, translator)
        return (tmp_path / name).read_bytes()

    def interrupted(name, blocks):
        def write(*arguments):
            original(*arguments)
            if next(written) == blocks:
                raise KeyboardInterrupt

        original, written = UnfinishedOutput.write, iter(range(1, 100))
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(UnfinishedOutput, "write", write)
            translation(name)
        assert not (tmp_path / name).exists()

    whole = translation("whole")
    assert whole.decode().splitlines()[:5] == [
        "() one cat sees two", "('one cat sees two',) the dog hears",
        "('one cat sees two', 'the dog hears') it sees red", "None ", "() two cat"]
    for blocks in range(1, 4):
        interrupted(f"part{blocks}", blocks)
        assert translation(f"part{blocks}") == whole


def test_a_model_without_context_refuses_one_and_is_in_no_ensemble_with_one_that_has(folder, tmp_path):
    (folder / "plain.yaml").write_text(RECIPE)
    settings = ["training.max_steps=1", f"tokenizer={{taken_from: {folder / 'run'}}}"]
    train(load_recipe(folder / "plain.yaml", settings), tmp_path / "plain")
    with pytest.raises(OptionError):
        Translator.load(tmp_path / "plain", "cpu").translate([Source("one", context=("two",))])
    with pytest.raises(CheckpointError):
        Translator.load(folder / "run", "cpu", ensemble=[tmp_path / "plain"])


def test_argos_translate_gets_no_model_with_context(each_translator, tmp_path):
    with pytest.raises(FormatError):
        argos.export_model(each_translator.directory, tmp_path / "package.argosmodel")


def test_a_coverage_penalty_is_refused(folder, translator):
    with pytest.raises(OptionError):
        translator.translate(LINES, coverage_penalty=0.2)


def test_the_weights_of_the_context_are_shown(each_translator):
    pair = ("one cat␞ it sees", "es sieht")
    ((_, found),) = compute_pair_attention(each_translator, [pair])
    assert ("context" in found.maps) == hasattr(each_translator.model, "hierarchy")
    assert found.maps["cross"].shape[3] == len(found.source.pieces) + 1


@pytest.mark.parametrize("settings", [
    ["data.context=0", "model.context=hierarchical"], ["tokenizer={type: words}"],
    ["decoding.coverage_penalty=0.2"], ["data.valid.document=3"]], ids=str)
def test_keys_that_do_not_fit_are_refused(folder, settings):
    with pytest.raises(RecipeError):
        load_recipe(folder / "recipe.yaml", settings)
