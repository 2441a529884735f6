"""Texts that look the same are the same text for the model; everything else stays as it is."""

import re
import unicodedata
from unicodedata import normalize

import hypothesis
import pytest
from hypothesis import strategies

from seq2seq.recipe import TokenizerSection
from seq2seq.tokenizers.canonical_text import CODE, canonical, canonical_origins, is_blank, looks_different
from seq2seq.tokenizers.marian_vocabulary import MarianVocabulary
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import Tokenizers, train_tokenizers

SENTENCES = ["Der müde Bär schläft.", "Ein Café für große Übungen", "der müde Hund", "zwei  Äpfel und ein Bär"]
PAIRS = [(sentence, sentence.upper()) for sentence in SENTENCES] * 3
# What a reader does not see: each function changes a text, and nobody can tell.
DISGUISES = {
    "nfd": lambda text: normalize("NFD", text), "nfc": lambda text: normalize("NFC", text),
    "no-break spaces": lambda text: text.replace(" ", "\xa0"),
    "narrow no-break spaces": lambda text: text.replace(" ", "\u202f"),
    "thin spaces": lambda text: text.replace(" ", " \u2009"), "tabs": lambda text: text.replace(" ", "\t"),
    "line separators": lambda text: text.replace(" ", "\u2028\u2029\x85"),
    "zero-width spaces": lambda text: "\u200b".join(text),
    "byte order marks": lambda text: text.replace("e", "\ufeffe"), "soft hyphens": lambda text: "\xad".join(text),
    "word joiners": lambda text: f"\u2060{text}\u2060", "direction marks": lambda text: f"\u202a{text}\u200e\u202c",
    "spaces at the ends": lambda text: f" \u3000{text}  ", "double spaces": lambda text: text.replace(" ", "  "),
    "carriage return": lambda text: f"{text}\r", "marks in the middle": lambda text: normalize("NFD", text).replace(
        "\u0308", "\u200b\u0308"),
}
every_disguise = pytest.mark.parametrize("disguise", DISGUISES.values(), ids=DISGUISES)
TEXTS = strategies.text(strategies.sampled_from(
    "aeou ÄüßxX\t\n\r\x85\xa0\xad\u200b\u200d\u3000\ufeff\u0308\u0301\u0323\u0302\u05b0\u05b4א한각가\u1100"
    "\u1161\u11a8Å\u212b"
    "\u0340\u0341\u0344\u0958\u09c7\u09be\u2028\u2000❤\ufe0f\U0001d15e"), max_size=12) | strategies.text(max_size=12)


def trained(**options) -> Tokenizers:
    return train_tokenizers(PAIRS, TokenizerSection(**{"vocab_size": "auto", **options}), seed=1)


KINDS = {"unigram": {}, "bpe": {"type": "bpe"}, "words": {"type": "words"}, "nmt_nfkc": {"normalization": "nmt_nfkc"},
         "characters": {"vocab_size": 308}, "one for each side": {"joint": False}}


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def tokenizers(request) -> Tokenizers:
    return trained(**request.param)


@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(TEXTS)
def test_the_canonical_form_is_final_and_each_of_its_characters_has_an_origin(text):
    result = canonical(text)
    assert eval(CODE, {"re": re, "unicodedata": unicodedata}, {"text": text}) == result
    assert canonical(result) == result == normalize("NFC", result) == result.strip()
    assert "  " not in result
    assert is_blank(text) == (result == "")
    origins = canonical_origins(text)
    assert len(origins) == len(result)
    assert all(0 <= begin < end <= len(text) for begin, end in origins)
    assert [begin for begin, _ in origins] == sorted(begin for begin, _ in origins)


@pytest.mark.parametrize(("text", "expected"), [
    ("\u1100\u1161\u11a8", "각"), ("가\u11a8", "각"),                           # Hangul, decomposed and half composed
    ("e\u0323\u0302", "ệ"), ("e\u0302\u0323", "ệ"), ("\u1eb9\u0302", "ệ"),      # Vietnamese, marks in either order
    ("\u212b \u2126 \u212a", "Å Ω K"), ("a\u0340b\u0341", "à\u0062\u0301"), ("\u037e", ";"),
    ("ש\u05c1\u05bc", "ש\u05bc\u05c1"), ("ب\u0651\u064e", "ب\u064e\u0651"),     # Hebrew and Arabic points
    ("ภาษา\u200bไทย", "ภาษาไทย"), ("a\u2028b\u2029c\x85d", "a b c d"), ("\ufeff", ""), ("1\u202f000\xa0€", "1 000 €"),
])
def test_what_looks_the_same_has_one_form(text, expected):
    assert canonical(text) == expected


@pytest.mark.parametrize("text", [
    "👩\u200d👩\u200d👧", "می\u200cخواهم", "क्\u200dष", "❤\ufe0f", "葛\U000e0100", "ᠠ\u180eᠡ", "你好，\u3000世界",
    "ﬁ ½ ①", "a\x00b\x07", "x\x93y", "q\u0308", "\ufffd", "🇩🇪", "🏴\U000e0067\U000e007f"])
def test_characters_that_a_reader_sees_or_that_change_words_stay(text):
    assert canonical(text) == text
    identity, usual = trained(normalization="identity").source, trained().source
    assert usual.encode([text]) != identity.encode([f"{text}."])
    assert usual.decode(usual.encode([text])) == [text]


@every_disguise
def test_the_model_sees_no_difference(tokenizers, disguise):
    plain, hidden = SENTENCES, list(map(disguise, SENTENCES))
    for tokenizer in (tokenizers.source, tokenizers.target):
        assert tokenizer.encode(hidden) == tokenizer.encode(plain)
        assert tokenizer.sample(hidden, 0.3, 7) == tokenizer.sample(plain, 0.3, 7)
        sources = [[Source(text, context=(text,), tag="<BT>") for text in texts] for texts in (hidden, plain)]
        assert tokenizer.encode(sources[0]) == tokenizer.encode(sources[1])


@every_disguise
@pytest.mark.parametrize("options", [{}, {"type": "words"}, {"normalization": "nmt_nfkc"}], ids=str)
def test_training_on_such_text_gives_the_same_tokenizer(disguise, options):
    section = TokenizerSection(vocab_size="auto", **options)
    pairs = [(disguise(source), disguise(target)) for source, target in PAIRS]
    assert train_tokenizers(pairs, section, 1).files() == train_tokenizers(PAIRS, section, 1).files()


@every_disguise
def test_spans_cover_the_characters_of_the_line_as_it_was_given(tokenizers, disguise):
    line = disguise(SENTENCES[0])
    tokenizer = tokenizers.source
    (ids,), (spans,) = tokenizer.encode([line]), tokenizer.spans([line])
    assert len(spans) == len(ids)
    for piece, (begin, end) in zip(tokenizer.pieces(ids), spans, strict=True):
        if begin < end and piece.isprintable() and not re.match("<(0x|unk)", piece):
            assert canonical(line[begin:end]) == canonical(piece.replace("\u2581", " "))


def test_the_rule_is_stored_in_the_files(tokenizers):
    again = Tokenizers.from_files(tokenizers.files())
    assert again.source.is_canonical and again.target.is_canonical
    assert again.source.encode(["mu\u0308de\xa0 "]) == tokenizers.source.encode(["müde"])


@pytest.mark.parametrize("kind", ["unigram", "words"])
def test_without_the_rule_the_files_and_the_fingerprint_differ(kind):
    identity, usual = trained(type=kind, normalization="identity"), trained(type=kind)
    again = Tokenizers.from_files(identity.files()).source
    assert not again.is_canonical and again.fingerprint != usual.source.fingerprint
    assert again.encode(["mu\u0308de"]) != again.encode(["müde"])
    assert again.encode([" müde \r"]) == again.encode(["müde"])                # white space at the ends is never read


def test_a_marian_vocabulary_of_such_a_model_has_the_rule():
    model = trained().source
    ids = {piece: index for index, piece in enumerate(model.pieces(range(model.vocab_size)))}
    for contents, expected in ((model.model, True), (trained(normalization="identity").source.model, False)):
        vocabulary = MarianVocabulary(contents, ids)
        assert vocabulary.is_canonical is expected
        assert (vocabulary.encode(["mu\u0308de"]) == vocabulary.encode(["müde"])) is expected


def test_lines_that_metrics_take_for_different_are_found():
    assert [looks_different(text) for text in ("müde", "mu\u0308de", "a\u200bb", "a\xa0b", "plain")] == [
        False, True, True, False, False]
