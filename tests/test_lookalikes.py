"""Text that looks the same is treated the same by every command; what training never had is said."""

import json
import random
from pathlib import Path
from unicodedata import normalize

import pytest
from command_files import LANGUAGE_MODEL, RECIPE, run_command, save_model, write_lines

from seq2seq.alignment.align import align
from seq2seq.check import check_recipe
from seq2seq.data.alignment_links import AlignmentSettings
from seq2seq.data.preparation import TrainingText, make_tokenizers, prepare
from seq2seq.documents.translate_document import translate_document
from seq2seq.evaluation.scores import perplexities
from seq2seq.recipe import TokenizerSection, load_recipe
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import Tokenizer, train_tokenizers
from seq2seq.tokenizers.vocabulary import CANONICAL_MARK
from seq2seq.training.guided_alignment import AlignmentLabels
from seq2seq.training.validation import Validation
from seq2seq.translation.translator import Translator

SOURCES = ["der müde Bär schläft", "ein Hund läuft über die Brücke", "zwei große Äpfel", "die Übung ist schön",
           "ein Fräulein hört Möwen", "der Hund sieht 3 Äpfel und 1 200 Bären"]
TARGETS = ["the tired bear sleeps", "a dog runs across the bridge", "two big apples", "the exercise is lovely",
           "a young lady hears gulls", "the café sells 3 apples and 1 200 bears"]
# Changes of text that a reader does not see, as they are in the texts of the issue.
CHANGES = {
    "nfc": lambda text: normalize("NFC", text), "nfd": lambda text: normalize("NFD", text),
    "nbsp": lambda text: text.replace(" ", "\xa0"), "narrow nbsp": lambda text: text.replace(" ", "\u202f"),
    "zwsp": lambda text: text.replace("e", "e\u200b"), "bom": lambda text: text.replace(" ", " \ufeff", 1),
    "soft hyphen": lambda text: text.replace("r", "r\xad"), "trailing spaces": lambda text: f"{text}  ",
    "double spaces": lambda text: text.replace(" ", "  "), "carriage return": lambda text: f"{text}\r",
}
every_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
MULTI30K = Path(__file__).parents[2] / "shared/data/multi30k"


def recipe_in(folder: Path, sources: list[str], targets: list[str], **changes: str):
    """Write two corpora of a training and a validation set, and return their recipe."""
    half = len(sources) // 2
    for name, part in (("one", slice(0, half)), ("two", slice(half, None)), ("valid", slice(None))):
        write_lines(folder / f"data/{name}.de", sources[part])
        write_lines(folder / f"data/{name}.en", targets[part])
    text = RECIPE.replace("{source: train.de, target: train.en}", "{source: one.de, target: one.en}, "
                          "{source: two.de, target: two.en}").replace("test.", "valid.").replace("283", "auto")
    for old, new in changes.items():
        text = text.replace(old, new)
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    return load_recipe(folder / "recipe.yaml")


def prepared_in(folder: Path, sources: list[str], targets: list[str], **changes: str):
    folder.mkdir(exist_ok=True)
    text = TrainingText.of(recipe_in(folder, sources, targets, **changes))
    trained = make_tokenizers(text)
    return prepare(text, trained, folder / "prepared", 1), trained


@pytest.fixture(scope="module")
def vocabulary():
    return train_tokenizers(zip(SOURCES, TARGETS, strict=True), TokenizerSection(), seed=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory, vocabulary) -> Path:
    """Random model that knows the characters of its training text."""
    text = RECIPE.replace("max_positions: 31", "max_positions: 211").replace("283", str(vocabulary.source.vocab_size))
    text = text.replace("max_pieces: 29", "max_pieces: 200")
    characters = {"source": "".join(sorted(set("".join(SOURCES)))), "target": "".join(sorted(set("".join(TARGETS))))}
    return save_model(tmp_path_factory.mktemp("models") / "model", 3, text, vocabulary, {"characters": characters})


# Training


@every_change
@pytest.mark.parametrize("options", [{}, {"vocab_size: auto": "type: words"}, {"vocab_size: auto":
                                     "vocab_size: auto, subword_sampling: 0.1"}], ids=str)
def test_training_text_gives_the_same_ids(tmp_path, change, options):
    sources, targets = SOURCES * 3, TARGETS * 3
    plain, _ = prepared_in(tmp_path / "plain", sources, targets, **options)
    changed, _ = prepared_in(tmp_path / "changed", list(map(change, sources)), list(map(change, targets)), **options)
    assert changed.fingerprint == plain.fingerprint
    assert changed.characters == plain.characters
    for name in ("source.txt", "target.txt"):
        if (plain.directory / name).exists():
            assert (changed.directory / name).read_bytes() == (plain.directory / name).read_bytes()


def test_guided_alignment_links_the_same_pieces(tmp_path):
    options = {"decoding:": "training: {guided_alignment: 0.1}\ndecoding:"}
    found = []
    for name, change in (("plain", str), ("nfd", CHANGES["nfd"]), ("zwsp", CHANGES["zwsp"])):
        sides = list(map(change, SOURCES)), list(map(change, TARGETS))
        prepared, trained = prepared_in(tmp_path / name, *sides, **options)
        found.append(AlignmentLabels.load_or_make(prepared, trained, Source("")).links.tolist())
    assert len(found[0]) and found[0] == found[1] == found[2]


def test_the_rule_is_a_part_of_what_is_prepared(tmp_path):
    canonical, _ = prepared_in(tmp_path, SOURCES, TARGETS)
    identity, _ = prepared_in(tmp_path, SOURCES, TARGETS, **{"vocab_size: auto":
                                                             "vocab_size: auto, normalization: identity"})
    assert canonical.directory != identity.directory


def test_duplicates_and_copies_are_found_across_corpora_as_the_model_sees_them(tmp_path):
    pairs = [("müde", "tired"), ("a b", "c"), ("x", "y"), ("mu\u0308de ", "tired"), ("a\xa0b", "c\u200b"), ("x", "z"),
             ("Über", "U\u0308ber"), ("", "q"), ("\u200b", "r")]
    options = {"{max_pieces: 29}": "{max_pieces: 29, remove_duplicates: true, remove_identical: true}"}
    prepared, _ = prepared_in(tmp_path, [one for one, _ in pairs], [other for _, other in pairs], **options)
    dropped = [counts["dropped"] for counts in prepared.counts.values()]
    assert dropped == [{"duplicate": 1}, {"duplicate": 1, "identical": 1, "empty": 2}]


@pytest.mark.parametrize("second", ["tag: <BT>", "languages: {source: de, target: fr}"])
def test_pairs_with_another_tag_or_direction_are_no_duplicates(tmp_path, second):
    options = {"{max_pieces: 29}": "{max_pieces: 29, remove_duplicates: true}",
               "target: two.en}": f"target: two.en, {second}}}"}
    prepared, _ = prepared_in(tmp_path, SOURCES[::2][:2] * 2, TARGETS[::2][:2] * 2, **options)
    assert [counts["kept"] for counts in prepared.counts.values()] == [2, 2]


# Translation


@every_change
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_translations_are_equal(model, change, precision):
    translator = Translator.load(model, device="cpu", precision=precision)
    lines = SOURCES + [" ".join(SOURCES * 2)]                                   # the last one is translated in parts
    found = translator.translate(list(map(change, lines)), safety_net=True)
    assert [one.text.strip() for one, in found] == [one.text for one, in translator.translate(lines, safety_net=True)]
    assert not any(one.unseen for one, in found)


@every_change
def test_translations_of_real_text_are_equal(model, change):
    path = MULTI30K / "val.de"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    lines = path.read_text(encoding="utf-8").split("\n")[:500]
    translator = Translator.load(model, device="cpu", precision="fp32")
    encode = translator.tokenizers.source.encode
    assert encode(list(map(change, lines))) == encode(lines)
    sample = random.Random(1).sample(lines, 20)
    assert [one.text.strip() for one, in translator.translate(list(map(change, sample)), beam_size=1)] == [
        one.text for one, in translator.translate(sample, beam_size=1)]


def test_lines_without_visible_characters_come_back_unchanged(model):
    blank = ["", " ", "\u200b", "\ufeff \xad", "\xa0\u3000\t", "\u2028"]
    assert [(one.text, one.parts) for one, in Translator.load(model, device="cpu").translate(blank)] == [
        (line, 0) for line in blank]


def test_one_warning_counts_the_lines_with_characters_that_training_never_had(tmp_path, model):
    lines = [*SOURCES, "der Bär 熊", "熊 und Ж", *map(CHANGES["nfd"], SOURCES), ""]
    write_lines(tmp_path / "in.de", lines)
    result = run_command("translate", model, tmp_path / "in.de", "--output", tmp_path / "out", "--device", "cpu")
    assert result.code == 0
    warning, = (line for line in result.err.split("warning: ") if "U+" in line)
    warning = " ".join(warning.split())
    assert "2 lines" in warning and "line 7" in warning and "U+718A" in warning and "CJK" in warning
    assert "U+0416 CYRILLIC CAPITAL LETTER ZHE (1)" in warning and "0308" not in warning


@pytest.mark.parametrize("command", ["score", "evaluate"])
def test_other_commands_say_it_too(tmp_path, model, command):
    write_lines(tmp_path / "in.de", ["der Bär", "熊"])
    write_lines(tmp_path / "in.en", ["the bear", "bear"])
    files = [tmp_path / "in.de", tmp_path / "in.en"] if command == "score" else [
        "--source", tmp_path / "in.de", "--reference", tmp_path / "in.en"]
    told = " ".join(run_command(command, model, *files, "--device", "cpu").err.split())
    assert f"{tmp_path / 'in.de'}: 1 line has characters" in told and "U+718A" in told


def test_the_warning_about_a_document_names_the_place_in_the_document(tmp_path, model, capsys):
    (tmp_path / "page.md").write_text("# der Hund\n\nein Hund läuft\n\nder Bär 熊\n", encoding="utf-8")
    result = run_command("translate", model, tmp_path / "page.md", "--output", tmp_path / "out.md", "--device", "cpu")
    assert "(first: line 5)" in " ".join(result.err.split())
    translate_document(Translator.load(model, device="cpu"), tmp_path / "page.md")
    assert "(first: line 5)" in " ".join(capsys.readouterr().err.split())


def test_a_model_without_a_record_of_its_characters_gives_no_warning(tmp_path, vocabulary):
    text = RECIPE.replace("283", str(vocabulary.source.vocab_size))
    for number, metadata in enumerate(({}, {"characters": 7}, {"characters": {"source": [1]}})):
        translator = Translator.load(save_model(tmp_path / str(number), 1, text, vocabulary, metadata), device="cpu")
        assert translator.translate(["熊"])[0][0].unseen == ""


def test_constraints_are_read_in_the_same_way(model):
    translator = Translator.load(model, device="cpu", precision="fp32")
    for phrase, hidden in (("café", "cafe\u0301"), ("big apples", "big\xa0apples"), ("apples", "ap\xadples")):
        for option in ("require", "forbid"):
            both = [translator.translate(SOURCES, beam_size=5, **{option: [one]}) for one in (phrase, hidden)]
            assert both[0] == both[1]


@pytest.mark.parametrize("before, after", [("  ", ""), ("", " \t"), ("\u3000", "\xa0 ")])
def test_alignments_do_not_depend_on_white_space_around_the_texts(model, before, after):
    translator = Translator.load(model, device="cpu", precision="fp32")
    pairs = list(zip(SOURCES, TARGETS, strict=True))
    assert align(translator, [(f"{before}{source}{after}", f"{before}{target}{after}") for source, target in pairs],
                 AlignmentSettings()) == align(translator, pairs, AlignmentSettings())


@pytest.mark.parametrize("blank", ["", "  ", "\u200b", "\xad \ufeff"])
def test_blank_lines_can_be_rescored(tmp_path, model, blank):
    (tmp_path / "in").write_text(f"{SOURCES[0]}\n{blank}\n", encoding="utf-8")
    options = ["--device", "cpu", "--n-best", "2", "--format", "jsonl", "--output", tmp_path / "n_best"]
    assert run_command("translate", model, tmp_path / "in", *options).code == 0
    assert run_command("rescore", tmp_path / "n_best", "--model", model, "--weight", "1", "--device", "cpu",
                       "--output", tmp_path / "out").code == 0
    assert (tmp_path / "out").read_text(encoding="utf-8").split("\n")[1:] == [blank, ""]


# One text, one perplexity


def perplexity_of_validation(folder: Path, model: Path, lines, targets) -> float:
    translator = Translator.load(model, device="cpu", precision="fp32")
    recipe = recipe_in(folder, lines, targets, **{"max_positions: 31": "max_positions: 211"})
    validation = Validation(recipe, translator.tokenizers)
    return sorted(map(tuple, (validation.corpus.target.ids.tolist(), validation.corpus.source.ids.tolist())))


VARIANTS = {
    "plain": lambda text: text, "trailing": lambda text: [f"{line}  " for line in text],
    "leading": lambda text: [f"\t {line}" for line in text], "returns": lambda text: [f"{line}\r" for line in text],
    "blank": lambda text: [part for line in text for part in (line, "", " \u200b")],
}


def test_perplexity_depends_neither_on_space_at_the_ends_nor_on_blank_lines(tmp_path, model):
    translator = Translator.load(model, device="cpu", precision="fp32")
    found, validated = [], []
    for name, vary in VARIANTS.items():
        sources, targets = vary(SOURCES), vary(TARGETS)
        found.append({metric: score.value for metric, score in
                      perplexities(translator, list(zip(sources, targets, strict=True))).items()})
        folder = tmp_path / name
        validated.append(perplexity_of_validation(folder, model, sources, targets))
        write_lines(folder / "de", sources)
        write_lines(folder / "en", targets)
        rows = [json.loads(line) for line in run_command(
            "score", model, folder / "de", folder / "en", "--format", "jsonl", "--device", "cpu").out.splitlines()]
        assert len(rows) == len(sources)
        found[-1]["score"] = sum(row["log_probability"] for row in rows) / sum(row["tokens"] for row in rows)
    assert all(each == pytest.approx(found[0], rel=1e-5) for each in found)
    assert all(each == validated[0] for each in validated)


def test_the_perplexity_of_a_language_model_does_not_either(tmp_path, vocabulary):
    text = LANGUAGE_MODEL.replace("283", str(vocabulary.source.vocab_size)).replace("31", "211")
    translator = Translator.load(save_model(tmp_path / "model", 1, text, vocabulary), device="cpu", precision="fp32")
    scores = [perplexities(translator, [("", line) for line in vary(TARGETS)]) for vary in VARIANTS.values()]
    values = [{metric: score.value for metric, score in each.items()} for each in scores]
    assert all(each == pytest.approx(values[0], rel=1e-5) for each in values)


def test_space_before_the_text_is_no_part_of_a_tagged_source(vocabulary):
    identity = Tokenizer(vocabulary.source.model.removesuffix(CANONICAL_MARK))
    for tokenizer in (identity, vocabulary.source):
        one, other = tokenizer.encode([Source(" ein Hund ", tag="<BT>"), Source("ein Hund", tag="<BT>")])
        assert one == other


# What check and evaluate say


def test_check_reports_text_that_looks_the_same_and_characters_that_train_lacks(tmp_path):
    sources = [*map(CHANGES["nfd"], SOURCES[:3]), *SOURCES[3:]] * 2
    recipe = recipe_in(tmp_path, sources, list(map(CHANGES["nbsp"], TARGETS)) * 2)
    write_lines(tmp_path / "data/valid.de", [*SOURCES[:4], "熊", "熊 Bär"])
    write_lines(tmp_path / "data/valid.en", [*TARGETS[:4], "x", "y\u200bz"])
    report = check_recipe(recipe, tmp_path / "run")
    assert not report.errors
    first, second, valid, *_ = report.corpora
    assert first.findings["not_in_nfc"].count == 3 == second.findings["not_in_nfc"].count
    assert first.findings["special_spaces"].count == 6
    assert second.findings["duplicate"].count == 6                              # of the first corpus
    assert valid.findings["invisible_characters"].lines == [6]
    warnings = "\n".join(report.warnings)
    assert "U+718A CJK UNIFIED IDEOGRAPH-718A (2)" in warnings
    assert len(valid.in_train["source"].lines) == 4


def test_check_warns_about_text_that_looks_the_same_only_if_it_is_frequent(tmp_path):
    def warnings_of(sources):
        report = check_recipe(recipe_in(tmp_path, sources, TARGETS * 60), tmp_path / "run")
        return [line for line in report.warnings if "NFC" in line]

    changed = list(map(CHANGES["nfd"], SOURCES))
    differing = [text for text, other in zip(changed, SOURCES, strict=True) if text != other]
    assert warnings_of(changed * 60)
    assert differing and not warnings_of([differing[0], *SOURCES[1:], *SOURCES * 59])


def test_references_that_metrics_take_for_different_are_counted(tmp_path):
    write_lines(tmp_path / "hypothesis", SOURCES)
    write_lines(tmp_path / "reference", list(map(CHANGES["nfd"], SOURCES)))
    result = run_command("evaluate", tmp_path / "hypothesis", "--reference", tmp_path / "reference")
    assert result.code == 0 and "6 of 6 lines" in " ".join(result.err.split())
    plain = run_command("evaluate", tmp_path / "hypothesis", "--reference", tmp_path / "hypothesis")
    assert "lines" not in plain.err
