"""Tests of scores. The expected values were printed by sacreBLEU's command line (2.6.0) for the same small files."""

import gzip
import json
import math
from types import SimpleNamespace

import pytest
import sacrebleu

from seq2seq.errors import CheckpointError, CorpusError, UserError
from seq2seq.evaluation.error_analysis import scores_with_intervals
from seq2seq.evaluation.recipe_tests import TestSet, read_tests, read_translations
from seq2seq.evaluation.scores import (
    METRICS,
    Score,
    ScoresByTest,
    check_expected,
    corpus_scores,
    evaluate_tests,
    format_scores,
    score_files,
    score_pairs,
    to_dict,
    warn_about_lines,
    within_range,
)
from seq2seq.evaluation.significance import compare, comparison_to_dict, format_comparison
from seq2seq.evaluation.system_comparison import compare_systems, translate_tests
from seq2seq.recipe import Corpus, Languages
from seq2seq.recipe.task import TRANSLATION
from seq2seq.storage.int8_score import Int8Score
from seq2seq.tokenizers.vocabulary import as_line

ENGLISH = [
    "The cat sat on the mat.",
    "Two dogs are running through the snow, aren't they?",
    "A man in a red shirt plays 3.5 guitars.",
    "Nobody came",
    "",
]
REFERENCE = [
    "The cat is sitting on the mat.",
    "Two dogs run through the deep snow, don't they?",
    "A man wearing a red shirt is playing 3.5 guitars.",
    "Nobody came to the party.",
    "The end.",
]
SECOND_REFERENCE = [
    "A cat sat on a mat.",
    "Two dogs are running in the snow, aren't they?",
    "One man in red is playing guitar.",
    "No one came.",
    "It is over.",
]
CHINESE = ["我喜欢在公园里散步，因为天气很好。", "他昨天去了北京大学图书馆看书。", "今天的价格是3.5元。"]
CHINESE_REFERENCE = ["我喜欢在公园里散步，因为今天天气很好。", "昨天他去北京大学的图书馆看书了。", "今天价格是3.5元。"]


def values(scores):
    return {metric: score.value for metric, score in scores.items()}


def test_scores_are_those_of_sacrebleus_command_line():
    # sacrebleu ref.en -i hyp.en -m bleu chrf ter -w 10
    scores = corpus_scores(ENGLISH, [REFERENCE], "en")
    assert values(scores) == pytest.approx({"bleu": 18.7712741059, "chrf": 50.294997333, "ter": 42.4242424242})
    assert {metric: score.signature for metric, score in scores.items()} == {
        "bleu": f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}",
        "chrf": f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}",
        "ter": f"nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|version:{sacrebleu.__version__}",
    }
    details = scores["bleu"].details
    assert details["brevity_penalty"] == pytest.approx(0.741, abs=5e-4)
    assert details["precisions"] == pytest.approx([80.0, 53.8, 18.2, 5.3], abs=0.05)
    assert (details["hypothesis_length"], details["reference_length"]) == (30, 39)


def test_several_references_are_streams_of_lines():
    # sacrebleu ref.en ref2.en -i hyp.en -m bleu chrf ter -w 10
    scores = corpus_scores(ENGLISH, [REFERENCE, SECOND_REFERENCE], "en")
    assert values(scores) == pytest.approx({"bleu": 46.894210066, "chrf": 61.1545487132, "ter": 36.0655737705})
    assert all(score.signature.startswith("nrefs:2|") for score in scores.values())


def test_chinese_is_split_into_characters():
    # sacrebleu ref.zh -i hyp.zh -tok zh -m bleu chrf ter --ter-normalized --ter-asian-support -w 10
    scores = corpus_scores(CHINESE, [CHINESE_REFERENCE], "zh")
    assert values(scores) == pytest.approx({"bleu": 67.2513384497, "chrf": 60.1613779577, "ter": 13.9534883721})
    assert "tok:zh" in scores["bleu"].signature and "norm:yes" in scores["ter"].signature
    # With 13a, each sentence would be a single word, and no word matches.
    assert corpus_scores(CHINESE, [CHINESE_REFERENCE], "en")["bleu"].value == 0


@pytest.mark.parametrize(("language", "hypothesis", "reference", "edits"), [
    ("th-TH", "ฉันชอบข้าว", "ฉันชอบข้าวผัด", 3), ("lo", "ສະບາຍດີ", "ສະບາຍ", 2), ("km", "ខ្ញុំទៅ", "ខ្ញុំ", 2),
    ("my", "မင်္ဂလာပါ", "မင်္ဂလာ", 2), ("bod_Tibt", "བཀྲ་ཤིས།", "བཀྲ་ཤིས", 1), ("ja", "すしをたべる", "すしをたべた", 1),
    ("nan", "我歡喜", "我歡喜你", 1),
])
def test_ter_of_languages_without_spaces_counts_characters_and_its_signature_says_so(language, hypothesis, reference,
                                                                                     edits):
    ter = corpus_scores([hypothesis], [[reference]], language, ["ter"])["ter"]
    assert ter.value == pytest.approx(100 * edits / len(reference)) and "|tok:char|" in ter.signature
    assert corpus_scores(["NA " + hypothesis], [["na " + reference]], language, ["ter"])["ter"].value < ter.value


def test_ter_of_languages_with_spaces_counts_words():
    ter = corpus_scores(["aku mangan"], [["aku turu"]], "jv", ["ter"])["ter"]
    assert ter.value == 50 and "|tok:tercom|" in ter.signature


@pytest.mark.parametrize(("language", "extra"), [("ja", "ja"), ("kor_Hang", "ko")])
def test_a_missing_package_is_reported_with_the_extra_that_installs_it(language, extra, monkeypatch):
    monkeypatch.setattr(f"sacrebleu.tokenizers.tokenizer_{extra}_mecab.MeCab", None)
    with pytest.raises(UserError, match=rf"sacrebleu\[{extra}\]"):
        corpus_scores(["猫"], [["猫"]], language)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_perfect_translation_is_perfect(language):
    """sacreBLEU's BLEU of equal texts is 100.00000000000004."""
    lines = REFERENCE[:4]                                                       # the last one has no 4-gram
    scores = corpus_scores(lines, [lines], language, (*METRICS, "exact"))
    assert values(scores) == {"bleu": 100, "chrf": 100, "ter": 0, "exact": 100}
    compared = compare([f"{line} " for line in lines * 2], lines * 2, [lines * 2], language, samples=20)
    estimates = [estimate for one in compared.values() for estimate in (one.system, one.baseline)]
    assert {(estimate.value, estimate.mean) for estimate in estimates} == {(100, 100), (0, 0)}
    intervals = scores_with_intervals(lines, lines, language, METRICS).values()
    assert {(one.value, one.mean, one.half) for one in intervals} == {(100, 100, 0), (0, 0, 0)}


def test_a_model_with_perfect_scores_has_a_record_of_them_that_is_read_again():
    bleu = corpus_scores(REFERENCE, [REFERENCE], "en")["bleu"]
    assert check_expected({"test": {"bleu": bleu}}, {"test": {"bleu": [99.5, 100]}}) == []
    record = Int8Score(bleu.value, bleu.value, "fp32", len(REFERENCE), bleu.signature)
    assert Int8Score.from_metadata(json.loads(json.dumps(record.metadata())), "metadata.json") == record


@pytest.mark.parametrize("value", [-0.1, 100.1, float("nan"), float("inf")])
def test_a_bleu_that_no_translation_can_have_is_no_record(value):
    metadata = Int8Score(value, 30.0, "fp32", 7, "s").metadata()
    with pytest.raises(CheckpointError):
        Int8Score.from_metadata(metadata, "metadata.json")


def test_rounding_takes_no_score_out_of_its_range_and_nothing_else_is_changed():
    assert within_range("bleu", 100.00000000000004) == 100 and within_range("perplexity", 0.9999999) == 1
    assert within_range("ter", 700.0) == 700 and within_range("word_perplexity", math.inf) == math.inf
    assert math.isnan(within_range("bleu", math.nan))


def test_only_the_requested_metrics_are_computed():
    assert list(corpus_scores(ENGLISH, [REFERENCE], "en", metrics=("chrf",))) == ["chrf"]
    with pytest.raises(UserError):
        corpus_scores(ENGLISH, [REFERENCE], "en", metrics=("meteor",))


def test_bleu_is_over_all_four_orders_even_for_short_text():
    assert "eff:no" in corpus_scores(["a b"], [["a b"]], "en")["bleu"].signature
    assert corpus_scores(["a b"], [["a b"]], "en")["bleu"].value == 0


@pytest.mark.parametrize("hypotheses, references", [
    (ENGLISH, [REFERENCE[:4]]), (ENGLISH, [REFERENCE, REFERENCE[:3]]), ([], [[]]), (ENGLISH, []),
    (ENGLISH, [[" "] * 5])],
    ids=["fewer lines", "fewer lines in one of two", "no lines", "no references", "blank references"])
def test_lines_that_do_not_match_or_are_missing_get_no_score(hypotheses, references):
    with pytest.raises(CorpusError):
        corpus_scores(hypotheses, references, "en")


@pytest.mark.parametrize("hypotheses, references", [("a", [["a"]]), (ENGLISH, REFERENCE)])
def test_a_text_in_place_of_a_list_of_lines_is_refused(hypotheses, references):
    with pytest.raises(TypeError):
        corpus_scores(hypotheses, references, "en")


def write_lines(path, lines, end="\n"):
    contents = "".join(line + end for line in lines).encode()
    path.write_bytes(gzip.compress(contents) if path.suffix == ".gz" else contents)
    return path


def test_scores_of_files_equal_scores_of_their_lines(tmp_path):
    hypotheses = write_lines(tmp_path / "hypotheses.en", ENGLISH)
    reference = write_lines(tmp_path / "reference.en", REFERENCE, end="\r\n")
    second = write_lines(tmp_path / "second.en.gz", SECOND_REFERENCE)
    found = score_files(hypotheses, [reference, second], "en")
    assert to_dict(found) == to_dict(corpus_scores(ENGLISH, [REFERENCE, SECOND_REFERENCE], "en"))


def test_a_line_ends_at_the_line_feed_alone(tmp_path):
    lines = ["one\u2028two\x85three four", "five\x0csix\rseven eight", "nine ten eleven twelve"]
    hypotheses = write_lines(tmp_path / "hypotheses", lines)
    reference = write_lines(tmp_path / "reference", [*lines[:2], "nine ten eleven dozen"])
    assert to_dict(score_files(hypotheses, [reference], "en")) == to_dict(
        corpus_scores(lines, [[*lines[:2], "nine ten eleven dozen"]], "en")
    )


def test_files_that_do_not_match_are_named_with_their_counts(tmp_path):
    hypotheses = write_lines(tmp_path / "hypotheses", ENGLISH)
    reference = write_lines(tmp_path / "reference", REFERENCE[:2])
    for one, other, name in ((hypotheses, reference, "hypotheses: 5 lines"),
                             (hypotheses, tmp_path / "nowhere", "nowhere"),
                             (write_lines(tmp_path / "empty", []), reference, "empty: 0 lines")):
        with pytest.raises(CorpusError, match=name):
            score_files(one, [other], "en")


TOKENISED = [f"the dog sees {number} cats , and runs ." for number in range(120)]


def test_scoring_tokenised_text_prints_no_warnings_of_sacrebleu(capfd, caplog):
    scores = corpus_scores(TOKENISED, [TOKENISED], "en")
    assert scores["bleu"].signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    compare(TOKENISED, TOKENISED, [TOKENISED], "en", ["bleu"], samples=3)
    assert capfd.readouterr() == ("", "") and not caplog.records


@pytest.mark.parametrize(("lines", "warned"), [(TOKENISED, True), (ENGLISH[:4], False),
                                               (["Vraiment ? Oui !", "Voilà : c'est ça ; bien."], False),
                                               (['{"line": 1, "translation": "a dog"}', "", '{"line": 2}'], True),
                                               (["a do@@ g", "ca@@ ts"], True)])
def test_a_file_that_is_no_plain_text_is_named_once_as_translations_or_as_references(tmp_path, capsys, lines, warned):
    path, plain = write_lines(tmp_path / "theirs.en", lines), write_lines(tmp_path / "plain.en", [
        "" if line == "" else "Dogs run." for line in lines])
    test = TestSet("plain", None, plain.read_text().splitlines(), ("de", "en"))
    for read in (lambda: score_files(path, [plain], "en"), lambda: score_files(plain, [path], "en"),
                 lambda: read_translations(path, [test])):
        read()
        assert capsys.readouterr().err.count(f"{path}") == warned


@pytest.mark.parametrize(("lines", "warned"), [
    (["a dog r@@ uns .", "it is on a b@@ ench"], True), (["▁a ▁dog ▁r uns .", "▁it ▁is"], True),
    (["write to me@home.org", "a well @-@ known dog", "one _ two"], False)])
def test_translations_of_subwords_are_named_with_the_remedy(tmp_path, capsys, lines, warned):
    path = write_lines(tmp_path / "theirs.en", lines)
    score_files(path, [path], "en")
    assert ("marks of subwords" in " ".join(capsys.readouterr().err.split())) == warned


@pytest.mark.parametrize("lines", [["我们在学校学习中文。", "今天 Tom 不在。"], ["ཁྱི་རྟ་མཐོང་།"]])
@pytest.mark.parametrize(("language", "warned"), [("en", True), ("zh", False), ("th", False), ("bo", False)])
def test_text_without_spaces_in_a_language_with_spaces_is_named(tmp_path, capsys, lines, language, warned):
    path = write_lines(tmp_path / "theirs.zh", lines)
    score_files(path, [path], language)
    tests = read_tests([path], None, [path], language)
    compare_systems(translate_tests([path, path], tests, None), tests, metrics=["bleu"], samples=3)
    assert capsys.readouterr().err.count("warning") == 2 * warned


class Parrot:
    """Fake translator with two fixed translations per line, the second of which must not be scored."""

    languages = SimpleNamespace(source="de", target="en")
    precision, directory = "int8", None

    def __init__(self, answers):
        self.answers = answers

    def translate(self, lines, progress):
        return [[SimpleNamespace(text=self.answers[as_line(line)], unseen=""), SimpleNamespace(text="worse")]
                for line in lines]


SOURCES = ["eins", "zwei", "drei", "vier", ""]


def test_a_translator_is_scored_by_its_best_translations():
    scores = score_pairs(Parrot(dict(zip(SOURCES, ENGLISH, strict=True))), list(zip(SOURCES, REFERENCE, strict=True)))
    assert to_dict(scores) == to_dict(corpus_scores(ENGLISH, [REFERENCE], "en", precision="int8"))


def test_every_test_set_of_a_recipe_is_scored_whole(tmp_path):
    files = {"source": "test.de", "target": "test.en"}
    write_lines(tmp_path / files["source"], SOURCES)
    write_lines(tmp_path / files["target"], REFERENCE)
    test = {"flickr": Corpus(**files), "two_lines": Corpus(**files, limit=2)}
    recipe = SimpleNamespace(data=SimpleNamespace(test=test, context=0), data_directory=tmp_path,
                             measures=("bleu", "chrf"), task=TRANSLATION, readable=None,
                             languages_of=lambda corpus: Languages(source="de", target="en"),
                             language_of=lambda corpus: "en")
    scores = evaluate_tests(Parrot(dict(zip(SOURCES, ENGLISH, strict=True))), recipe)
    wanted = {"language": "en", "metrics": ("bleu", "chrf"), "precision": "int8"}
    assert to_dict(scores["flickr"]) == to_dict(corpus_scores(ENGLISH, [REFERENCE], **wanted))
    assert to_dict(scores["two_lines"]) == to_dict(corpus_scores(ENGLISH[:2], [REFERENCE[:2]], **wanted))
    only_exact = evaluate_tests(Parrot(dict(zip(SOURCES, ENGLISH, strict=True))), recipe, metrics=("exact",))
    assert {name: list(measured) for name, measured in only_exact.items()} == {"flickr": ["exact"],
                                                                               "two_lines": ["exact"]}


def test_exact_is_the_share_of_lines_that_equal_their_line_in_a_reference():
    hypotheses = ["1 3 2", "2 1", "1", "3 2 1", ""]
    one, other = ["1 3 2", "1 2", "1 ", "3 2 1", ""], ["2", "2 1", "2", "3", "4"]
    scores = corpus_scores(hypotheses, [one], "en", ("exact",))
    assert to_dict(scores) == {"exact": {"value": 60.0, "signature": "nrefs:1|case:mixed|equal:line"}}
    assert corpus_scores(hypotheses, [one, other], "en", ("exact",))["exact"].value == 80
    assert format_scores(scores) == "exact   60.00  nrefs:1|case:mixed|equal:line"


def test_the_score_table_has_a_row_with_signature_for_each_metric():
    scores = corpus_scores(ENGLISH, [REFERENCE], "en")
    rows = format_scores(scores).splitlines()
    assert [row.split()[:2] for row in rows] == [["BLEU", "18.77"], ["chrF", "50.29"], ["TER", "42.42"]]
    assert all(score.signature in row for score, row in zip(scores.values(), rows, strict=True))
    assert rows[0].endswith("(80.0/53.8/18.2/5.3, brevity penalty 0.741, length 0.769)")


def test_the_score_table_of_references_without_a_token_can_be_printed():
    scores = corpus_scores(["a cat"], [["<skipped>"]], "en", ("bleu",))
    assert format_scores(scores).startswith("BLEU    0.00  ")


def test_the_precision_is_reported_beside_the_signature():
    known = corpus_scores(ENGLISH, [REFERENCE], "en", ("bleu", "exact"), precision="bf16")
    unknown = corpus_scores(ENGLISH, [REFERENCE], "en", ("bleu", "exact"))
    assert [score.signature for score in known.values()] == [score.signature for score in unknown.values()]
    assert all(f"{score.signature}  precision:bf16" in format_scores(known) for score in known.values())
    assert {score["precision"] for score in to_dict(known).values()} == {"bf16"}
    assert "precision:" not in format_scores(unknown) and "precision" not in to_dict(unknown)["bleu"]


def test_the_precisions_of_two_systems_are_named():
    found = compare(ENGLISH, REFERENCE, [REFERENCE], "en", ["chrf"], samples=3, precisions=("int8", None))
    table = format_comparison(found, "ours", "theirs").splitlines()
    assert table[2].endswith("precision:int8") and "precision" not in table[1]
    values = comparison_to_dict(found)["chrf"]
    assert (values["system"]["precision"], values["baseline"]["precision"]) == ("int8", None)


def test_scores_are_json_values_and_not_rounded():
    scores = corpus_scores(ENGLISH, [REFERENCE], "en")
    values_read = json.loads(json.dumps(to_dict(scores)))
    assert values_read["bleu"]["value"] == scores["bleu"].value
    assert values_read["bleu"]["reference_length"] == 39
    assert values_read["ter"] == {"value": scores["ter"].value, "signature": scores["ter"].signature}


def test_blank_references_and_translations_are_named_with_the_first_line(tmp_path, capsys):
    for name, lines in (("hypothesis", [*ENGLISH[:4], "x"]), ("reference", ["a", " ", "b", "", "c"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    score_files(tmp_path / "hypothesis", [tmp_path / "reference"], "en", ["chrf"])
    warning, = (line for line in capsys.readouterr().err.splitlines() if "blank" in line)
    assert "reference: 2 of 5 lines" in warning and "line 2" in warning


def test_lines_that_separate_documents_in_all_texts_are_no_fault(capsys):
    warn_about_lines("test", ["a", "", "b"], [["eins", " ", "zwei"], ["a", "", "b"]])
    assert capsys.readouterr().err == ""


def test_a_score_outside_the_expected_range_causes_a_warning():
    measured = {"flickr": {"bleu": Score(38.204, "s"), "chrf": Score(62.0, "s"), "ter": Score(51.5, "s")}}
    expected = {
        "flickr": {"bleu": [39.5, 42.5], "chrf": [60, 62], "ter": [40, 50.5]},
        "coco": {"bleu": [30, 32]},
    }
    assert check_expected(measured, expected) == [
        "flickr: bleu is 38.20, below the expected 39.5 to 42.5.",
        "flickr: ter is 51.50, above the expected 40 to 50.5.",
        "coco: bleu was not measured; 30 to 32 was expected.",
    ]
    assert check_expected(measured, {}) == []


def test_a_nan_score_is_outside_every_range():
    assert len(check_expected({"test": {"bleu": Score(float("nan"), "s")}}, {"test": {"bleu": [0, 100]}})) == 1


def test_notebooks_show_scores_and_comparisons_as_tables(tmp_path):
    hypotheses, references = ["a dog runs fast"] * 7, [["a dog ran fast"] * 7]
    scores = corpus_scores(hypotheses, references, "en", precision="int8")
    table = scores._repr_html_()
    for metric, score in scores.items():
        assert all(f">{text}</td>" in table for text in (f"{score.value:.2f}", score.signature)), metric
    assert ">int8<" in table
    by_test = ScoresByTest({"a<b": scores})._repr_html_()
    assert "<caption>a&lt;b</caption>" in by_test and by_test.endswith(table)
    compared = compare(hypotheses, ["a cat"] * 7, references, "en", ["bleu"])
    assert all(f">{text}" in compared._repr_html_() for text in (
        f"{compared['bleu'].difference:+.2f}", "p = 0.0010, significant at 0.05", compared["bleu"].signature))
    assert "not tested" in compare(hypotheses, hypotheses, references, "en", ["bleu"])._repr_html_()


PUBLISHED_REFERENCES = [
    "Das „Rich-Text“-Format ist z. B. für 5,3 % der Nutzer geeignet.", 'Er sagte: "Das ist Müllers E-Mail-Adresse".',
    "Die Nord-Süd-Achse wurde 1990 gebaut …", "Was kostet das? 3.000 Euro (etwa 2.800 £).",
    "Bitte lesen Sie Seite 12 & 13, usw. und so weiter.", "Der Bundestag hat am 11. September zugestimmt."]
PUBLISHED_HYPOTHESES = [
    "Das „Rich-Text“ Format ist z. B. für 5,3 % der Nutzer gut geeignet.",
    "Er sagte: „Das ist Müllers E-Mail-Adresse“.", "Die Nord-Süd-Achse wurde im Jahr 1990 gebaut …",
    "Was kostet das? 3.000 Euro (ungefähr 2.800 £).", "Lesen Sie bitte Seite 12 & 13 usw. und so weiter.",
    "Der Bundestag hat am 11. September nicht zugestimmt."]


def test_tokenised_bleu_is_that_of_the_script_behind_the_scores_of_papers():
    # Printed by the steps of tensor2tensor's get_ende_bleu.sh: Moses' replace-unicode-punctuation.perl, tokenizer.perl
    # -l de, the split of compounds in Perl, and multi-bleu.perl.
    score = corpus_scores(PUBLISHED_HYPOTHESES, [PUBLISHED_REFERENCES], "de", ["tokenized_bleu"])["tokenized_bleu"]
    assert score.value == pytest.approx(68.1276, abs=1e-4)
    assert score.details["precisions"] == pytest.approx([88.3, 76.1, 63.1, 50.8], abs=0.05)
    assert (score.details["hypothesis_length"], score.details["reference_length"]) == (77, 74)
    assert "|tok:moses-de-compounds-split|smooth:none|" in score.signature


def test_tokenised_bleu_has_no_smoothing():
    assert corpus_scores(["a b c d"], [["a b d e"]], "de", ["tokenized_bleu"])["tokenized_bleu"].value == 0
    assert corpus_scores(["a b c d"], [["a b d e"]], "de", ["bleu"])["bleu"].value > 0
