"""A retry corrects faulty translations only, with the same results for any batching and number of processes."""

import json
import re
from pathlib import Path

import pytest
from random_models import recipe_text, save_random_model, trained_tokenizers

from seq2seq.errors import RequestError
from seq2seq.recipe import DecodingSection, Languages
from seq2seq.search.beams import Hypothesis
from seq2seq.tokenizers.line_splitting import DividedLine, sentences
from seq2seq.tokenizers.source import Source
from seq2seq.translation.output_faults import faults
from seq2seq.translation.retry_faulty_lines import MAX_LOSS, retry_faulty, retry_sentences
from seq2seq.translation.search_setup import Part, PartTranslation, SearchSetup
from seq2seq.translation.translator import Translator
from seq2seq.translation.worker_processes import TranslatorPool

RECIPE = recipe_text(
    293, "d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 61",
    "beam_size: 2, max_length_ratio: 1.5, max_length_offset: 3")
GERMAN = ["ein Hund läuft", "eine Katze schläft", "der Hund 1987 schläft", "die Katze läuft im Haus", "zwei 2 und 3"]
ENGLISH = ["a dog runs", "a cat sleeps", "the dog 1987 sleeps", "the cat runs in the house", "two 2 and 3"]
LANGUAGES = Languages(source="de", target="en")
LOOP = "the dog runs in the house in the house in the house"


@pytest.fixture(scope="module")
def tokenizers():
    return trained_tokenizers(RECIPE, zip(GERMAN, ENGLISH, strict=True))


@pytest.fixture(scope="module")
def bundle(tokenizers, tmp_path_factory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("models") / "model", RECIPE, tokenizers, seed=1)


@pytest.fixture
def mend(tokenizers):
    """Retry with a fake search that returns given translations; `asked_for` lists its requests."""
    tokenizer = tokenizers.target

    def found(text: str, mean: float = -0.5) -> PartTranslation:
        tokens = tokenizer.encode([text])[0]
        return PartTranslation(Hypothesis(tokens, mean * (len(tokens) + 1), score=mean), text)

    def mend(pairs: dict[str, list[str]], again: dict[str, list[str]], mean: float = -0.5, **options) -> list:
        setup = SearchSetup(DecodingSection(**options), tokenizer, "en")

        def search(parts, second):
            mend.asked_for.append((second.decoding, list(parts)))
            if any(part.source.text not in again for part in parts):
                raise RequestError("it cannot be had")
            return [[found(text, mean) for text in again[part.source.text]] for part in parts]

        parts = [Part(Source(text), line) for line, text in enumerate(pairs)]
        first = [[found(text) for text in texts] for texts in pairs.values()]
        return [[(way.text, way.faults, way.retried) for way in ways]
                for ways in retry_faulty(parts, first, setup, LANGUAGES, search)]

    mend.asked_for = []
    return mend


def test_a_translation_without_faults_is_not_retried(mend):
    assert mend({"ein Hund läuft": ["a dog runs"]}, {}) == [[("a dog runs", (), False)]]
    assert mend.asked_for == []


def test_a_repetition_loop_is_retried_without_repetitions(mend):
    found = mend({"ein Hund läuft": ["a dog runs"], "der Hund läuft im Haus": [LOOP]},
                 {"der Hund läuft im Haus": [LOOP, "the dog runs in the house", "the dog sleeps in the house"]})
    assert found == [[("a dog runs", (), False)], [("the dog runs in the house", (), True)]]
    (options, parts), = mend.asked_for
    assert (options.no_repeat_ngram, options.beam_size, options.n_best) == (3, 5, 5)
    assert [part.line for part in parts] == [1]


def test_constraints_also_apply_to_the_retry(mend):
    mend({"der Hund läuft im Haus": [LOOP]}, {"der Hund läuft im Haus": []}, no_repeat_ngram=2, beam_size=6,
         forbid=("cat",), diverse_groups=3, length_penalty=0.7)
    (options, _), = mend.asked_for
    assert (options.no_repeat_ngram, options.beam_size, options.forbid, options.length_penalty) == (2, 6, ("cat",), 0.7)


def test_lost_numbers_and_addresses_are_required(mend, tokenizers):
    source = "der Hund 1987 und 2.345 http://a.example"
    found = mend({source: ["the dog and 2,345"]}, {source: ["1987 the dog and 2,345 http://a.example"]})
    assert found == [[("1987 the dog and 2,345 http://a.example", (), True)]]
    (_, (part,)), = mend.asked_for
    # 2.345 is written otherwise in English.
    assert [each.spellings for each in part.required] \
        == [(tuple(each),) for each in tokenizers.target.encode(["http://a.example", "1987"])]
    assert part.required[1].phrase.is_in("the 1987s"), "1987er of German"


def test_many_lost_numbers_are_not_required_in_the_retry(mend):
    source = "der Hund 1987 2987 3987 4987 5987 6987"
    mend({source: ["the dog"]}, {source: ["the dog 1987"]})
    (_, (part,)), = mend.asked_for
    assert part.required == ()


def test_if_the_lost_numbers_cannot_be_produced_the_retry_omits_them(tokenizers):
    required = []

    def search(parts, second):
        required.extend(part.required for part in parts)
        if any(part.required for part in parts):
            raise RequestError("it cannot be had")
        return [[PartTranslation(Hypothesis([5, 6], -0.3, score=-0.1), "the dog runs in the house")] for _ in parts]

    first = PartTranslation(Hypothesis([5, 6, 7], -0.4, score=-0.1), LOOP)
    (found,) = retry_faulty([Part(Source("der Hund 1987 läuft im Haus"), 0)], [[first]],
                            SearchSetup(DecodingSection(), tokenizers.target, "en"), LANGUAGES, search)
    assert [bool(phrases) for phrases in required] == [True, False]
    assert found[0].text == "the dog runs in the house" and found[0].faults == ("lost_number",)


def test_an_empty_translation_is_retried(mend):
    assert mend({"ein Hund": [""]}, {"ein Hund": ["", "a dog"]}) == [[("a dog", (), True)]]
    assert mend.asked_for[0][0].min_length == 1


@pytest.mark.parametrize(("again", "mean"), [
    (["the dog runs in the house"], -0.5 - MAX_LOSS - 0.01),                   # the model does not believe it
    (["the cat the cat the cat the cat the cat runs"], -0.4),                   # as many faults
    ([], -0.5),
])
def test_a_retry_that_is_not_better_is_discarded_and_the_fault_is_reported(mend, again, mean):
    source = "der Hund läuft im Haus"
    assert mend({source: [LOOP]}, {source: again}, mean) == [[(LOOP, ("loop",), False)]]


@pytest.mark.parametrize(("mean", "taken"), [(-0.6, True), (-0.8, False)])
def test_a_copy_of_the_source_with_high_probability_is_kept(mend, mean, taken):
    source = "die Katze läuft im Haus"
    found = mend({source: [source]}, {source: ["the cat runs in the house"]}, mean)
    assert found == [[("the cat runs in the house", (), True) if taken else (source, ("copied",), False)]]


MANY = "Der Hund läuft. Die Katze schläft.  Der Hund schläft. Die Katze läuft. Ein Hund läuft im Haus."
EACH = ["The dog runs.", "The cat sleeps.", "The dog sleeps.", "The cat runs.", "A dog runs in the house."]


def by_sentence(first: str, each: list[str], text: str = MANY, prefix: tuple[int, ...] = ()):
    """Return the lines and translations of `retry_sentences` for a line of two parts, the second of which is faulty."""
    def found(source, text):
        return [PartTranslation(Hypothesis([5], -0.5, score=-0.5), text, faults=faults(source, text, "de", "en"))]

    line = DividedLine(" ", ["Ein Hund.", text], ["\t"], "  ")
    parts = [Part(Source(one), 3, index, prefix) for index, one in enumerate(line.texts)]
    asked_for: list[str] = []

    def translate(sentences):
        asked_for.extend(part.source.text for part in sentences)
        assert {(part.line, part.index) for part in sentences} == {(3, 1)}
        return [found(part.source.text, text) for part, text in zip(sentences, each, strict=True)]

    (line,), translations = retry_sentences([line], parts, [found("Ein Hund.", "A dog."), found(text, first)],
                                            LANGUAGES, translate)
    best = [one for one, *_ in translations]
    return line.join([one.text for one in best], "en"), asked_for, [one.retried for one in best]


def test_the_sentences_of_a_part_that_is_too_short_are_translated_alone():
    text, asked_for, retried = by_sentence("The dog runs.", EACH)
    assert text == " A dog.\tThe dog runs. The cat sleeps.  The dog sleeps. The cat runs. A dog runs in the house.  "
    assert asked_for == [sentence.strip() for sentence in sentences(MANY)] and retried == [False, *[True] * 5]


def test_a_part_that_lost_half_of_its_sentences_is_too_short_even_if_its_length_is_plausible():
    lost = "The dog runs in the house and the dog sleeps in it."
    assert faults(MANY, lost, "de", "en") == ("too_short",)
    joined = "The dog runs, the cat sleeps; the dog sleeps, and the cat runs: a dog is running in the house."
    assert faults(MANY, joined, "de", "en") == ()
    assert by_sentence(lost, EACH)[2] == [False, *[True] * 5]


@pytest.mark.parametrize(("first", "each", "options"), [
    ("The dog runs.", ["", "", "", "", "A dog."], {}),                          # as short as before
    (" ".join(EACH), [], {}), ("The dog runs.", [], {"prefix": (7,)}), ("Dog.", [], {"text": MANY.replace(".", ",")}),
])
def test_a_part_without_faults_with_a_prefix_or_of_one_sentence_is_kept(first, each, options):
    text, asked_for, retried = by_sentence(first, each, **options)
    assert text == f" A dog.\t{first}  " and len(asked_for) == len(each) and not any(retried)


def test_a_constraint_that_fails_for_one_line_does_not_affect_other_lines(mend):
    sources = ["der Hund läuft im Haus", "die Katze läuft im Haus", "ein Hund läuft im Haus"]
    found = mend({source: [LOOP] for source in sources},
                 {source: ["the dog runs in the house"] for source in sources[::2]})
    assert [ways[0][2] for ways in found] == [True, False, True]


def test_the_retry_is_ranked_before_the_faulty_translations_of_an_n_best_list(mend):
    source = "der Hund läuft im Haus"
    found = mend({source: [LOOP, "the dog sleeps", "the cat runs"]},
                 {source: ["the cat runs", "the dog runs"]}, n_best=3)
    assert [text for text, *_ in found[0]] == ["the cat runs", LOOP, "the dog sleeps"]


@pytest.mark.parametrize("options", [{"sampling": True}, {"mbr": 2}])
def test_samples_and_minimum_bayes_risk_are_checked_but_not_retried(mend, options):
    assert mend({"der Hund läuft im Haus": [LOOP]}, {}, **options) == [[(LOOP, ("loop",), False)]]
    assert mend.asked_for == []


# With a model: it is random, so that nearly all that it says is wrong.


LINES = ["ein Hund läuft", "", "der Hund 1987 schläft", "die Katze läuft im Haus", "\u2028der Hund 1987  ", "a",
         "der Hund läuft. " * 13 + "http://a.example", "zwei 2 und 3", "eine Katze www.example.org schläft"]


@pytest.mark.slow
@pytest.mark.usefixtures("workers_are_processes")
def test_several_processes_retry_like_one(bundle):
    with TranslatorPool(bundle, 2, "cpu", "fp32") as pool:
        shared = [best for best, *_ in pool.translate_stream(LINES)]
    assert [(one.text, one.faults, one.retried) for one in shared] \
        == [(one.text, one.faults, one.retried) for one, *_ in Translator.load(bundle, "cpu", "fp32").translate(LINES)]


def test_each_line_is_retried_independently(bundle):
    translator = Translator.load(bundle, "cpu", "fp32")
    plain = [best for best, *_ in translator.translate(LINES, safety_net=False)]
    together = [best for best, *_ in translator.translate(LINES)]
    alone = [translator.translate([line])[0][0] for line in LINES]
    assert not any(one.faults or one.retried for one in plain)                  # nothing was looked for
    assert [(one.text, one.faults, one.retried) for one in together] \
        == [(one.text, one.faults, one.retried) for one in alone]
    assert any(one.retried for one in together) and any(one.faults for one in together)
    for line, one, unmended in zip(LINES, together, plain, strict=True):
        if one.parts == 1:
            assert one.faults == faults(line.strip(), one.text.strip(), "de", "en")
            assert one.retried or one.text == unmended.text
            assert len(one.faults) <= len(faults(line.strip(), unmended.text.strip(), "de", "en"))


def test_scores_of_retried_translations_are_those_of_the_model(bundle):
    translator = Translator.load(bundle, "cpu", "fp32")
    mended_lines = [(line, best) for line, (best, *_) in zip(LINES, translator.translate(LINES, word_confidence=True),
                                                             strict=True) if best.retried and best.parts == 1]
    for _, best in mended_lines:
        assert best.score == pytest.approx(best.log_probability / best.tokens)
        assert best.words


def test_the_command_reports_the_faulty_lines_and_jsonl_lists_their_faults(bundle, tmp_path, capfd):
    from seq2seq.cli import main

    (tmp_path / "in").write_text("\n".join([*LINES, *["der Hund 1987 läuft"] * 7, ""]))
    arguments = ["translate", str(bundle), str(tmp_path / "in"), "--format", "jsonl", "--device", "cpu"]
    capfd.readouterr()
    assert main(arguments) == 0
    out, err = capfd.readouterr()
    records = [json.loads(line) for line in out.split("\n")[:-1]]
    faulty = [record for record in records if record["faults"]]
    for record in faulty[:3]:
        assert f"warning: {tmp_path / 'in'}:{record['line']}: {', '.join(record['faults'])}\n" in err
    assert f"{len(faulty) - 3} more translations have faults" in err
    assert f"in:{7}: translated in {records[6]['parts']} parts" in err
    assert f"improved by a retry: {sum(record['retried'] for record in records)}\n" in err
    assert main([*arguments, "--no-safety-net"]) == 0
    out, err = capfd.readouterr()
    assert not re.search("faults|retry_faulty", out + err)
