"""Tests of `check` on corpora that are shuffled, shifted, in a wrong language or encoding; and of measured steps."""

import importlib
import itertools
import json
import random
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seq2seq.check import check_recipe, show_report
from seq2seq.check.corpus_statistics import BLOCK_LINES, Sample
from seq2seq.check.misalignment import TranslationTable, _words
from seq2seq.check.pair_checks import MIN_BLOCKS, CorpusChecker
from seq2seq.cli import main
from seq2seq.data.language_identification import is_installed
from seq2seq.recipe import Languages, load_recipe
from seq2seq.tokenizers.source import Source
from seq2seq.training.memory import PROGRAM

RECIPE = """\
name: tiny
languages: {source: xx, target: yy}
data:
  train: [{source: train.xx, target: train.yy}]
  valid: {source: valid.xx, target: valid.yy}
tokenizer: {vocab_size: 300}
model: {d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7}
training: {batch_tokens: 211, warmup_steps: 3, max_steps: 13, precision: fp32}
"""
TATOEBA = Path(__file__).parents[3] / "shared/data/tatoeba_en_zh"
PAIRS = 1201
VALID = 67


def language(seed: int) -> list[str]:
    """Return 101 random words of an artificial language, which depends on the seed."""
    rng = random.Random(seed)
    sounds = [rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(13)]
    return ["".join(rng.choices(sounds, k=rng.randint(2, 4))) for _ in range(101)]


def corpus(size: int = PAIRS) -> list[tuple[str, str]]:
    """Return sentences of 3 to 11 words in an artificial language, with word-by-word translations into another one."""
    rng, first, second = random.Random(3), language(5), language(7)
    sentences = [[min(int(rng.expovariate(1 / 30)), 100) for _ in range(rng.randint(3, 11))] for _ in range(size)]
    return [(" ".join(first[word] for word in sentence), " ".join(second[word] for word in sentence))
            for sentence in sentences]


@pytest.fixture
def directory(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seq2seq.check.pair_checks.is_installed", lambda: False)    # unknown languages
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    write("valid", corpus(PAIRS + VALID)[PAIRS:])
    return tmp_path


def write(name: str, pairs: list[tuple[str, str]]) -> None:
    for side, ending in enumerate(("xx", "yy")):
        Path(f"{name}.{ending}").write_text("".join(f"{pair[side]}\n" for pair in pairs))


def judged(pairs):
    write("train", pairs)
    report = check_recipe(load_recipe("recipe.yaml", []), Path("run"))
    return report.corpora[0].judgement, report


def test_a_clean_corpus_is_reported_without_problems(directory):
    judgement, report = judged(corpus())
    assert judgement.pairs == PAIRS and judgement.misaligned < 0.01 and judgement.slip is None
    assert not judgement.wrong_side and not report.warnings


def test_shuffled_targets_are_detected_with_their_share(directory):
    pairs = corpus()
    places = random.Random(11).sample(range(PAIRS), 61)
    shuffled = list(pairs)
    for place, other in zip(places, places[1:] + places[:1], strict=True):
        shuffled[place] = (pairs[place][0], pairs[other][1])
    judgement, report = judged(shuffled)
    assert judgement.misaligned == pytest.approx(61 / PAIRS, rel=0.4)
    assert set(judgement.suspects.lines) <= {place + 1 for place in places}
    assert len(report.warnings) == 1


@pytest.mark.parametrize("by", [1, pytest.param(-1, marks=pytest.mark.slow)])
def test_the_line_where_one_side_is_shifted_is_named(directory, by):
    pairs = corpus()
    targets = [target for _, target in pairs]
    slipped = targets[:700] + (["", *targets[700:-1]] if by > 0 else [*targets[701:], ""])
    judgement, report = judged([(source, target or "so") for (source, _), target in zip(pairs, slipped, strict=True)])
    assert judgement.slip.by == by
    assert abs(judgement.slip.first - 701) <= 1 and judgement.slip.last >= PAIRS - 2
    assert any("one side is shifted" in warning for warning in report.warnings)


@pytest.mark.slow
def test_a_shift_from_the_first_line_on_is_detected(directory):
    pairs = corpus()
    judgement, _ = judged([(source, target) for (source, _), (_, target) in zip(pairs, pairs[1:], strict=False)])
    assert judgement.slip.by == -1 and judgement.slip.first <= 3 and judgement.misaligned > 0.5


def test_text_of_the_other_side_is_counted_with_its_lines(directory):
    pairs = [(source, source) if number % 20 == 0 else (source, target)
             for number, (source, target) in enumerate(corpus(), start=1)]
    judgement, report = judged(pairs)
    assert judgement.wrong_side["target"].count == pytest.approx(60, abs=6)
    assert judgement.wrong_side["target"].lines[:3] == [20, 40, 60]
    assert any("language of the other side" in warning for warning in report.warnings)


@pytest.mark.slow
@pytest.mark.skipif(not is_installed(), reason="needs the extra `language`")
def test_a_third_language_is_detected_among_the_pairs_that_lingua_checks(directory, monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.chdir(directory)
    parts = (("die Nachbarin", "our neighbour"), ("der alte Lehrer", "the old teacher"), ("mein Bruder", "my brother"),
             ("hat gestern", "yesterday bought"), ("möchte morgen", "will perhaps buy"), ("wollte nie", "never had"),
             ("ein neues Fahrrad", "a new bicycle"), ("das kleine Haus", "the small house"), ("vier Bücher", "books"),
             ("am Bahnhof", "at the station"), ("in der Stadt", "in the city"), ("hinter der Schule", "at school"))
    drawn = itertools.product(*(parts[first : first + 3] for first in (0, 3, 6, 9)))
    pairs = [tuple(" ".join(part[side] for part in sentence) for side in (0, 1)) for sentence in drawn] * 15
    third = "la biblioteca de la universidad está cerrada durante las vacaciones de verano"
    pairs = [(source, third if number % 10 == 0 else target) for number, (source, target) in enumerate(pairs, start=1)]
    Path("recipe.yaml").write_text(RECIPE.replace("source: xx, target: yy", "source: de, target: en", 1))
    judgement, report = judged(pairs)
    assert set(judgement.wrong_language) == {"target"}
    wrong = judgement.wrong_language["target"]
    assert all(line % 10 == 0 for line in wrong.lines)
    assert judgement.recognised == 300 and wrong.count == sum(line % 10 == 0 for line in range(4, 1201, 4))
    show_report(report)
    assert re.search(r"target in another language, after cleaning +60 +300 +20.00%", capsys.readouterr().out)


@pytest.mark.parametrize("count", [613, 2003])
def test_lingua_checks_a_fixed_number_of_pairs_from_the_whole_corpus(count, monkeypatch):
    lines = []

    class Detector:
        fault = None

        def __init__(self, languages):
            pass

        def wrong(self, source, target):
            lines.append(int(source.split()[-1]))
            return {"target": "es"}

    for name, value in (("is_installed", lambda: True), ("LanguageDetector", Detector), ("MAX_CHECKED_PAIRS", 1009),
                        ("MAX_LANGUAGE_ID_PAIRS", 13)):
        monkeypatch.setattr(f"seq2seq.check.pair_checks.{name}", value)
    pairs = [(line, f"ba do ba do ba do ba do {line}", f"ki mu {line}") for line in range(1, count + 1)]
    checker = CorpusChecker([pairs[:BLOCK_LINES]] * MIN_BLOCKS, Languages(source="de", target="en"))
    report = checker.check(iter(pairs), count)
    assert report.recognised == len(lines) == 13
    assert json.loads(json.dumps(asdict(report)))["identified"] == {"target": {"es": 13}}
    assert max(after - before for before, after in itertools.pairwise([0, *lines, count])) < 3 * count / 13


def test_an_empty_validation_set_beside_a_large_corpus_is_an_error_not_a_crash(directory):
    write("train", corpus())
    write("valid", [])
    report = check_recipe(load_recipe("recipe.yaml"), directory / "run")
    assert report.corpora[0].judgement and any("valid" in error for error in report.errors)


@pytest.mark.parametrize("first", [0, PAIRS // 4, PAIRS // 2, PAIRS])
def test_sides_that_have_nothing_to_do_with_each_other_are_warned_of(directory, first):
    sources, targets = (list(side) for side in zip(*corpus(), strict=True))
    shuffled = targets[first:]
    random.Random(1).shuffle(shuffled)
    judgement, report = judged(list(zip(sources, targets[:first] + shuffled, strict=True)))
    assert judgement.unrelated == (first < PAIRS)
    found = [warning for warning in report.warnings if re.search("hardly better than random|look like transl", warning)]
    assert len(found) == (first < PAIRS)


def test_a_list_of_different_words_is_not_called_unrelated(directory):
    words = [f"{number:b}".translate({48: "ba", 49: "ko"}) for number in range(1500, 1500 + 2 * PAIRS)]
    assert not judged(list(zip(words[::2], words[1::2], strict=True)))[0].unrelated


def test_too_little_text_is_not_judged(directory):
    judgement, report = judged(corpus(23))
    assert judgement.pairs == 0 and judgement.misaligned is None


def test_pair_scores_use_translations_learned_from_other_sentences():
    pairs = corpus()
    dictionary = TranslationTable(pairs[:800])
    fitting = dictionary.evidence(pairs[800:])
    moved = dictionary.evidence([(source, target) for (source, _), (_, target)
                                 in zip(pairs[800:-1], pairs[801:], strict=True)])
    assert (fitting > 0).mean() > 0.97 and (moved < 0).mean() > 0.9
    assert dictionary.evidence([]).shape == (0,)
    assert dictionary.evidence([("", ""), ("zz", "7")])[0] < 0
    assert TranslationTable([]).evidence([("a", "b")]).shape == (1,)


@pytest.mark.skipif(not TATOEBA.is_dir(), reason="needs the data of Tatoeba beside the checkout")
@pytest.mark.parametrize(("shuffled", "estimated"), [(0, (0, 0.01)), (135, (0.03, 0.06))])
def test_the_share_of_wrong_pairs_is_estimated_in_little_text_of_a_spaceless_script_too(monkeypatch, shuffled,
                                                                                        estimated):
    monkeypatch.setattr("seq2seq.check.pair_checks.is_installed", lambda: False)
    texts = [(TATOEBA / f"train.{side}").read_text(encoding="utf-8").split("\n") for side in ("en", "zh")]
    lines = random.Random(1).sample(range(len(texts[0])), 2_700)
    moved = dict(zip(lines[:shuffled], [*lines[1:shuffled], *lines[:1]], strict=False))
    sample = Sample(1)
    pairs = [(line, texts[0][place], texts[1][moved.get(place, place)]) for line, place in enumerate(lines, 1)]
    for _ in sample.draw_from((line, Source(source), target) for line, source, target in pairs):
        pass
    report = CorpusChecker(sample.blocks, Languages(source="en", target="zh")).check(pairs, len(pairs))
    assert report.misaligned is not None and estimated[0] <= report.misaligned <= estimated[1]


def test_blocks_are_drawn_evenly_and_keep_their_lines_together():
    sample = Sample(1)
    pairs = [(line, Source("a"), "b") for line in range(1, 400 * BLOCK_LINES + 4)]
    assert list(sample.draw_from(pairs)) == pairs
    assert len(sample.blocks) == 320
    assert all([line - block[0][0] for line, _, _ in block] == list(range(len(block))) for block in sample.blocks)
    assert max(block[0][0] for block in sample.blocks) > 320 * BLOCK_LINES


def test_kinds_of_lines_and_limits_are_counted_before_cleaning(directory):
    write("train", [("ba 7", "do 8"), ("", "do"), ("ba 7", "do 8"), ("ba", "ba"), ("HÃ¼", "&quot;do"),
                    ("x" * 11, "y" * 40), ("z" * 600, "z" * 601), ("ba , bo .", "do"), ("ba", "do , di .")])
    report = check_recipe(load_recipe("recipe.yaml", []), Path("run"))
    train = report.corpora[0]
    assert {kind: (finding.count, finding.lines) for kind, finding in train.findings.items()} == {
        "numbers_differ": (2, [1, 3]), "empty": (1, [2]), "duplicate": (1, [3]), "identical": (1, [4]),
        "damaged": (1, [5]), "html_entities": (1, [5]), "tokenised_source": (1, [8]), "tokenised_target": (1, [9])}
    assert train.limits["max_characters"] == {"250": 1, "500": 1, "1000": 0, "5000": 0}
    assert train.limits["max_length_ratio"] == {"1.5": 1, "2.0": 1, "3.0": 1, "4.0": 0}
    assert train.limits["min_number_agreement"] == {"0.5": 2, "0.7": 2, "1.0": 2}


def test_steps_are_measured_and_no_files_remain(directory, monkeypatch):
    write("train", corpus(211))
    monkeypatch.setattr(importlib.import_module("seq2seq.check.measure"), "SECONDS", 300)    # busy machines, too
    before = {path for path in directory.rglob("*")}
    importlib.import_module("torch._inductor")                                  # creates a folder on import
    monkeypatch.setattr("tempfile.tempdir", str(directory / "aside"))
    (directory / "aside").mkdir()
    held = b"x" * 600_000_000                                                   # as lingua's models
    report = check_recipe(load_recipe("recipe.yaml", []), Path("run"), measured=True)
    assert len(held) and not report.errors
    assert report.measured["steps"] == 10
    assert report.measured["hours"] == pytest.approx(report.measured["seconds_a_step"] * 13 / 3600)
    assert report.measured["tokens_a_second"] > 0
    assert PROGRAM < report.measured["peak_bytes"] < PROGRAM + 400_000_000, "what `check` holds is not counted"
    assert {path for path in directory.rglob("*")} - before == {directory / "aside"}


def test_disk_usage_is_computed_from_sizes(directory):
    write("train", corpus(23))
    report = check_recipe(load_recipe("recipe.yaml", []), Path("run"))
    assert report.disk["needed"] > 4 * 12 * report.model["parameters"]          # 3 checkpoints, one being written
    kept = [check_recipe(load_recipe("recipe.yaml", [f"training.average={{kind: {kind}, count: 5}}",
                                                     f"training.divergence={divergence}"]), Path("run")).disk["needed"]
            for kind, divergence in (("none", "stop"), ("last", "stop"), ("best", "stop"), ("best", "lower_rate"))]
    checkpoint = (kept[1] - kept[0]) / 2                                                # 3, 5, 3 + 5, 3 + 5 + 2
    assert [round((needed - kept[0]) / checkpoint, 6) for needed in kept] == [0, 2, 5, 7]


KEYS = ["languages.source", "data.train.0.source", "data.train.0.limit", "data.train.0.weight", "data.valid.target",
        "data.root", "data.cleaning.max_pieces", "data.cleaning.max_characters", "data.cleaning.max_length_ratio",
        "data.cleaning.min_number_agreement", "data.cleaning.max_length_deviation", "data.cleaning.language",
        "data.cleaning.remove_duplicates", "tokenizer.vocab_size", "tokenizer.type", "tokenizer.joint",
        "tokenizer.taken_from", "model.d_model", "model.num_heads", "model.type", "model.copy", "model.max_positions",
        "model.encoder_layers", "model.feed_forward", "model.tied_embeddings", "training.batch_tokens",
        "training.precision", "training.max_steps", "training.average.kind", "decoding.beam_size", "name", "nonsense"]
VALUES = ["0", "1", "-1", "2", "7", "12", "1000000", "9223372036854775807", "1e300", ".nan", ".inf", "true", "null",
          "''", "[]", "{}", "[1, 2]", "valid.xx", "no.xx", ".", "latin1", "sides", "any", "words", "bpe", "rnn",
          "pointer", "language_model", "none", "all", "bf16", "auto", "last", "xx", "\u2028", "0.5", "3"]
MUTATIONS = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MUTATIONS)
def test_a_mutated_recipe_is_checked_or_refused(directory, mutations):
    Path("latin1").write_bytes(b"\xe4\n\x00\n")
    write("train", corpus(11))
    code = main(["check", "recipe.yaml", *(part for key, value in mutations for part in ("--set", f"{key}={value}"))])
    assert code in (0, 2), mutations


def test_words_keep_their_combining_marks():
    assert _words("किताब हिन्दी 12") == ["किताब", "हिन्दी", "12"]
    assert _words("ภา 用Python") == ["ภ", "า", "用", "python"]
    for text in ("မြန်မာ", "ខ្មែរ"):                                                # Burmese and Khmer have no spaces
        assert _words(text) == list(dict.fromkeys(text))
