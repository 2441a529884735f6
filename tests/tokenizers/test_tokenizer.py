"""Tokenizers: encoding and decoding without loss, reproducible training, and error messages."""

from __future__ import annotations

import io
import random
import re
import subprocess
import sys
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import hypothesis
import pytest
import sentencepiece
from hypothesis import strategies

from seq2seq.errors import TokenizerError
from seq2seq.recipe import TokenizerSection
from seq2seq.tokenizers.canonical_text import canonical
from seq2seq.tokenizers.marian_vocabulary import MarianVocabulary
from seq2seq.tokenizers.tokenizer import (
    END_ID,
    START_ID,
    UNKNOWN_ID,
    Tokenizer,
    Tokenizers,
    reservoir_sample,
    train_tokenizers,
)
from seq2seq.tokenizers.unigram_lines import additional_lines
from seq2seq.tokenizers.vocabulary_size import vocabulary_size
from seq2seq.tokenizers.whole_words import Words

GERMAN = ["ein Hund läuft", "eine Katze schläft", "der Hund schläft", "die Katze läuft im Haus",
          "die Kinder laufen im Garten und lachen laut"]
ENGLISH = ["a dog runs", "a cat sleeps", "the dog sleeps", "the cat runs in the house",
           "the children are running through the garden and laughing loudly"]
PAIRS = list(zip(GERMAN, ENGLISH, strict=True))

# Of the 256 bytes, 3 symbols, and the characters of the text; 290 leaves some pieces of several characters.
SIZES = {True: 290, False: 281}
KINDS = [(kind, joint) for kind in ("unigram", "bpe") for joint in (True, False)]

ODD_TEXTS = [
    "", " ", "   ", " a", "a ", "  a  b  ", "\t", "a\tb", "\x00", "a\x00b", "\r", "a\r", "\n", "a\nb\n", "\u0085",
    "\u2028", "a\u2028b\u2029c", "\x0b\x0c\x1c\x1d\x1e\x1f\x7f", "\ufeffa", "\u00a0a\u3000", "<s>", "</s>", "<unk>",
    "<0x41>", "<pad>", "<s> a </s>", "你好，世界", "مرحبا", "हिन्दी", "ﷺ", "e\u0301", "\u00e9", "ﬁ",
    "👩\u200d👩\u200d👧", "\U000f0000\U0010ffff", "\ufffe\uffff", "\ufffd", "𝔘𝔫𝔦", "12345", "ein Hund läuft",
    "\u0300", "\u200b",
]
LONG_TEXT = "x" * 5000


def train(kind: str = "unigram", joint: bool = True, pairs=PAIRS, seed: int = 1, **options) -> Tokenizers:
    section = TokenizerSection(**{"type": kind, "joint": joint, "vocab_size": SIZES[joint], **options})
    return train_tokenizers(pairs, section, seed)


@pytest.fixture(scope="module")
def trained() -> dict[tuple[str, bool], Tokenizers]:
    return {(kind, joint): train(kind, joint) for kind, joint in KINDS}


@pytest.fixture(scope="module")
def every(trained) -> list[Tokenizer]:
    return [tokenizer for both in trained.values() for tokenizer in {both.source, both.target}]


@pytest.fixture(scope="module")
def unigram(trained) -> Tokenizer:
    return trained["unigram", True].source


@pytest.fixture(scope="module")
def bpe(trained) -> Tokenizer:
    return trained["bpe", True].source


# There and back


@pytest.mark.parametrize("text", [*ODD_TEXTS, pytest.param(LONG_TEXT, id="long")], ids=ascii)
def test_unusual_text_survives_encoding_and_decoding(every, text):
    for tokenizer in every:
        assert tokenizer.decode(tokenizer.encode([text])) == [canonical(text)]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=ascii)
def test_without_normalisation_only_white_space_at_the_ends_is_lost(text):
    identity = train(normalization="identity").source
    assert identity.decode(identity.encode([text])) == [text.strip()]


# Half of a surrogate pair is no character, U+2581 is how sentencepiece writes a space.
CHARACTERS = strategies.characters(exclude_categories=["Cs"], exclude_characters="\u2581")
TEXTS = strategies.text(CHARACTERS) | strategies.text("ein Hdläuft<>s/0x41\t\n\r\x00\u0085\u2028", max_size=40)


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(strategies.lists(TEXTS, max_size=5))
def test_every_text_survives_encoding_and_decoding(every, lines):
    for tokenizer in every:
        encoded = tokenizer.encode(lines)
        assert tokenizer.decode(encoded) == list(map(canonical, lines))
        assert not {UNKNOWN_ID, START_ID, END_ID}.intersection(chain.from_iterable(encoded))


@hypothesis.settings(deadline=None, max_examples=20)
@hypothesis.given(TEXTS, strategies.integers(0, 2**63 - 1))
def test_sampled_pieces_are_of_the_same_text(every, text, seed):
    for tokenizer in every:
        sampled = tokenizer.sample([text], 0.3, seed)
        assert tokenizer.decode(sampled) == [canonical(text)]
        assert not {UNKNOWN_ID, START_ID, END_ID}.intersection(sampled[0])


def test_a_lower_one_eighth_block_is_the_only_character_that_is_lost(unigram):
    assert unigram.decode(unigram.encode(["a\u2581b"])) == ["a b"]


def test_the_symbols_written_as_text_are_text(every):
    for tokenizer in every:
        for text in ("<s>", "</s>", "<unk>", "<0x41>"):
            ids, = tokenizer.encode([text])
            assert len(ids) >= 3 and min(ids) > END_ID
            assert tokenizer.encode([text + text])[0].count(ids[-1]) >= 2


def test_an_empty_line_has_no_pieces(every):
    for tokenizer in every:
        assert tokenizer.encode(["", "ein", ""])[::2] == [[], []]
        assert tokenizer.encode([]) == [] == tokenizer.decode([])
        assert tokenizer.decode([[], []]) == ["", ""]


def test_start_and_end_vanish_and_broken_bytes_become_replacement_characters(unigram):
    ids, = unigram.encode(["Hund"])
    assert unigram.decode([[START_ID, *ids, END_ID]]) == ["Hund"]
    euro, = unigram.encode(["€"])
    assert "\ufffd" in unigram.decode([euro[:-1]])[0]
    assert "\n" not in unigram.decode([euro[:-1]])[0]


def test_half_a_surrogate_pair_is_refused(unigram):
    for encode in (unigram.encode, unigram.encode_flat, lambda lines: unigram.sample(lines, 0.1, 1)):
        with pytest.raises(TokenizerError):
            encode(["ein Hund", "\ud800", "Haus"])


# Other ways to encode


def test_threads_change_nothing(every):
    lines = [f"{text} {number}" for number, text in enumerate(ODD_TEXTS * 3)]
    for tokenizer in every:
        assert tokenizer.encode(lines, threads=3) == tokenizer.encode(lines)


def test_flat_ids_are_the_same_ids(every):
    for tokenizer in every:
        flat, offsets = tokenizer.encode_flat(ODD_TEXTS, threads=2)
        assert (flat.dtype, offsets.dtype) == ("int64", "int64")
        cut = [flat[begin:end].tolist() for begin, end in zip(offsets[:-1], offsets[1:], strict=True)]
        assert cut == tokenizer.encode(ODD_TEXTS)
    flat, offsets = every[0].encode_flat([])
    assert (flat.tolist(), offsets.tolist()) == ([], [0])


# Subword sampling

LINES = GERMAN * 5


def test_samplers_in_several_threads_do_not_disturb_each_other(unigram, bpe):
    tasks = [(tokenizer, seed) for seed in range(10) for tokenizer in (unigram, bpe)]
    alone = [tokenizer.sample(GERMAN, 0.3, seed) for tokenizer, seed in tasks]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(5) as pool:
            together = list(pool.map(lambda task: task[0].sample(GERMAN, 0.3, task[1]), tasks))
    finally:
        sys.setswitchinterval(interval)
    assert together == alone


# Training


@pytest.mark.parametrize("kind, joint", [("unigram", True), pytest.param("bpe", False, marks=pytest.mark.slow)])
def test_another_process_makes_the_same_model(trained, tmp_path, kind, joint):
    program = f"""
        from seq2seq.recipe import TokenizerSection
        from seq2seq.tokenizers.tokenizer import train_tokenizers
        section = TokenizerSection(type={kind!r}, joint={joint!r}, vocab_size={SIZES[joint]})
        train_tokenizers({PAIRS!r}, section, 1).save({str(tmp_path)!r})
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=60, check=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == trained[kind, joint].files()


def test_the_seed_decides_what_is_drawn_and_so_the_model():
    pairs = [(f"wort{number} {'abcdefg'[number % 7] * 3}", f"word{number}") for number in range(300)]
    models = [train(pairs=pairs, seed=seed, sample_lines=100).source.model for seed in (1, 1, 2)]
    assert models[0] == models[1] != models[2]


def test_separate_tokenizers_learn_from_their_own_language(trained):
    both = trained["bpe", False]
    assert not both.joint and both.source.fingerprint != both.target.fingerprint
    assert len(both.source.encode(["Katze schläft"])[0]) < len(both.target.encode(["Katze schläft"])[0])
    assert trained["bpe", True].joint


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize(("impossible", "pattern", "beyond"), [
    (9999, r"the largest possible vocabulary has ([\d,]+)", 1), (261, r"([\d,]+) are needed", -1)])
def test_an_impossible_vocabulary_size_is_refused_with_the_limit(kind, impossible, pattern, beyond):
    with pytest.raises(TokenizerError) as error:
        train(kind, vocab_size=impossible)
    limit = int(re.search(pattern, str(error.value))[1])
    assert train(kind, vocab_size=limit).source.vocab_size == limit
    with pytest.raises(TokenizerError):
        train(kind, vocab_size=limit + beyond)


LETTERS = "abcdefghijklm"


def drawn_pairs(count: int) -> list[tuple[str, str]]:
    """Return pairs of ten words with a few letters each."""
    rng = random.Random(1)
    words = ["".join(rng.choices(LETTERS, k=rng.randint(1, 7))) for _ in range(9_973)]
    return [tuple(" ".join(rng.choices(words, k=10)) for _ in range(2)) for _ in range(count)]


@pytest.mark.parametrize(("kind", "joint"), [("unigram", True), ("bpe", False)])
def test_a_vocabulary_of_the_size_auto_suits_the_text(kind, joint):
    pairs = drawn_pairs(1000)
    both = train(kind, joint, pairs, vocab_size="auto")
    characters = [sum(len(pair[side]) for pair in pairs) for side in (0, 1)]
    expected = [sum(characters)] * 2 if joint else characters
    alphabet = len(LETTERS) + 1                                                 # and the space
    assert [both.source.vocab_size, both.target.vocab_size] == [vocabulary_size(count, alphabet) for count in expected]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_auto_is_limited_by_what_the_text_allows_and_by_its_characters(kind):
    """A line of many characters, a single character, and a character that nmt_nfkc replaces with four others."""
    for pairs in (PAIRS[:1], [("".join(map(chr, range(0x4E00, 0x4E00 + 1009))), "a")], [("a", "a")],
                  [("\ufdfa", "x")]):
        for normalization in ("identity", "nmt_nfkc"):
            auto = train(kind, pairs=pairs, vocab_size="auto", normalization=normalization).source
            texts = [text for pair in pairs for text in pair]
            assert not any(auto._processor.is_byte(index) for line in auto.encode(texts) for index in line)


def test_auto_is_chosen_by_the_whole_text_not_by_the_sample():
    pairs = drawn_pairs(1000)
    assert train("bpe", pairs=pairs, vocab_size="auto", sample_lines=600).source.vocab_size == train(
        "bpe", pairs=pairs, vocab_size="auto").source.vocab_size


def test_characters_that_are_encoded_as_bytes_do_not_count_in_auto():
    pairs = drawn_pairs(1000) + [("".join(map(chr, range(0x4E00, 0x4E00 + 101))), "a")]
    assert train("bpe", pairs=pairs, vocab_size="auto", character_coverage=0.99).source.vocab_size == train(
        "bpe", pairs=drawn_pairs(1000), vocab_size="auto").source.vocab_size


@pytest.mark.parametrize("pairs", [[], [("", "")], [(" ", "\u3000")]], ids=["none", "empty", "blank"])
def test_nothing_to_train_on_is_an_error(pairs):
    with pytest.raises(TokenizerError):
        train(pairs=pairs, normalization="nmt_nfkc")


def test_characters_that_look_like_line_ends_are_never_pieces():
    wild = "\u2028\u2029\u0085\x0b\x0c\x00\x1c\x7f\t"
    pairs = [(f"{character}ab{character}cd{character}", "ab") for character in wild] * 11
    for kind in ("unigram", "bpe"):
        tokenizer = train(kind, pairs=pairs, vocab_size=265).source
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        assert not set(wild).intersection("".join(pieces))
        for character in wild:
            assert all(piece.startswith("<0x") for piece in tokenizer.pieces(tokenizer.encode([f"{character}"])[0][1:]))


def test_a_frequent_word_is_a_piece_even_if_the_same_character_always_follows_it():
    """A space follows each "Ich" here, as in many small corpora. "I" and "ch" are pieces of other words."""
    drawn = random.Random(1)
    verbs = ["".join(drawn.choices("abdefgklmnoprstuvwz", k=5)) for _ in range(200)]
    pairs = [(f"Ich {drawn.choice(verbs)} noch ein Buch.", f"I {drawn.choice(verbs)} a book, too.") for _ in range(500)]
    trained = train(pairs=pairs, vocab_size=400).source
    assert trained.pieces(trained.encode(["Ich"])[0]) == ["▁Ich"]


def test_the_most_frequent_words_of_a_monotonous_text_are_pieces():
    """At first every word is a piece, and sentencepiece removes most single characters. It then counts each unknown
    character as the most probable piece, so short words seem cheap to divide."""
    drawn = random.Random(1)
    latin = ["".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=drawn.randint(1, 6))) for _ in range(200)]
    chinese = ["".join(drawn.choices([chr(0x4E00 + index) for index in range(60)], k=drawn.randint(1, 3)))
               for _ in latin]
    weights = [(rank + 1) ** -0.5 for rank in range(len(latin))]
    sentences = [drawn.choices(range(len(latin)), weights, k=5) for _ in range(2000)]
    pairs = [(" ".join(latin[word] for word in sentence), "".join(chinese[word] for word in sentence))
             for sentence in sentences]
    trained = train(pairs=pairs, vocab_size=500).source
    assert [word for word in latin[:40] if len(trained.encode([word])[0]) > 1] == []


def test_each_character_has_an_additional_line_in_which_it_follows_no_neighbour_of_the_text():
    lines = ["abcab cab", "ba 中c"] * 5
    added = additional_lines(lines)
    words, for_characters = added[:4], added[4:]
    assert words == ["abcab", "cab", "ba", "中c"]
    assert sorted(line[1] for line in for_characters) == sorted("abc中")
    assert not [line for line in for_characters if any(line in text for text in lines)]
    assert additional_lines(["ab a"] * 5) == ["ab", "a", "ba"]
    assert additional_lines([]) == additional_lines([" "]) == additional_lines(["rare"] * 2) == []


def test_digits_stand_alone():
    pairs = [("im Jahr 1999 und 1998", "in 1999 and 1998")] * 11
    pieces = train("bpe", pairs=pairs, vocab_size=280).source.pieces(range(280))
    assert not [piece for piece in pieces if re.search(r"\d.|.\d", piece) and not piece.startswith("<0x")]


def test_a_long_line_is_trained_on_like_any_other():
    """By default sentencepiece silently drops lines of more than 4,192 bytes."""
    long = "Dampfschiff " * 1000
    assert "\u2581Dampfschiff" in train("bpe", pairs=[(long, "a")], vocab_size=285).source.pieces(range(285))


def test_nmt_nfkc_normalises_characters_that_identity_keeps(unigram):
    folding = train(normalization="nmt_nfkc").source
    identity = train(normalization="identity").source
    assert folding.decode(folding.encode(["Hund，  Katze "])) == ["Hund, Katze"]
    assert unigram.decode(unigram.encode(["Hund，  Katze "])) == ["Hund， Katze"]
    assert identity.decode(identity.encode(["Hund，  Katze "])) == ["Hund，  Katze"]


# Symbols


def test_never_generated_ids_are_the_unknown_the_start_and_control_bytes(every):
    for tokenizer in every:
        ids = tokenizer.never_generated_ids
        names = [f"<0x{byte:02X}>" for byte in range(0x20)] + ["<0x7F>"]
        assert sorted(tokenizer.pieces(ids)) == sorted(["<unk>", "<s>", *names])
        assert UNKNOWN_ID in ids and START_ID in ids
        assert END_ID not in ids
        controls = tokenizer.encode([f"a{chr(byte)}a" for byte in (*range(0x20), 0x7F)])
        others = set(chain.from_iterable(controls)) - set(ids)
        assert set("".join(tokenizer.pieces(sorted(others)))) == set("\u2581a")


def foreign_model(**options) -> bytes:
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(GERMAN + ENGLISH), model_writer=writer, minloglevel=2, vocab_size=40, model_type="bpe",
        **options)
    return writer.getvalue()


def test_pieces_with_control_characters_in_imported_models_are_banned():
    tokenizer = Tokenizer(foreign_model(user_defined_symbols=["a\tb", "\n", "c\u2028", "\x85"]))
    assert tokenizer.pieces(tokenizer.never_generated_ids) == ["<unk>", "<s>", "a\tb", "\n", "c\u2028", "\x85"]


@pytest.mark.parametrize("ids", [{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
                                 {"unk_id": 0, "bos_id": -1, "eos_id": 1}])
def test_a_model_that_numbers_its_symbols_otherwise_is_refused(ids):
    with pytest.raises(TokenizerError):
        Tokenizer(foreign_model(**ids))


# Files


@pytest.mark.parametrize("kind, joint", KINDS)
def test_tokenizers_survive_the_disk(trained, tmp_path, kind, joint):
    both = trained[kind, joint]
    assert set(both.files()) == ({"tokenizer.model"} if joint else {"source.model", "target.model"})
    both.save(tmp_path)
    for again in (Tokenizers.load(tmp_path), Tokenizers.from_files(both.files())):
        assert again.joint == joint
        assert again.files() == both.files()
        assert (again.source is again.target) == joint
        assert again.target.encode(ENGLISH) == both.target.encode(ENGLISH)


@pytest.mark.parametrize("damaged", [slice(0, -100), slice(0, 0), slice(0, 20)], ids=str)
def test_a_damaged_or_missing_model_is_refused(unigram, tmp_path, damaged):
    with pytest.raises(TokenizerError):
        Tokenizers.load(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(unigram.model[damaged])
    with pytest.raises(TokenizerError):
        Tokenizers.load(tmp_path)


# The sample that a tokenizer is trained on


def pairs_to(count: int) -> list[tuple[str, str]]:
    return [(f"{number:03}", "") for number in range(count)]


def test_a_text_smaller_than_the_sample_is_taken_whole():
    for pairs, size in ((pairs_to(7), 7), (iter(pairs_to(7)), 11)):
        assert reservoir_sample(pairs, size, 1) == pairs_to(7)
    assert reservoir_sample([], 11, 1) == []


def test_the_sample_is_in_the_order_of_the_text_and_follows_the_seed():
    drawn = reservoir_sample(pairs_to(500), 23, 1)
    assert len(set(drawn)) == 23 and drawn == sorted(drawn)
    assert reservoir_sample(pairs_to(500), 23, 1) == drawn
    assert reservoir_sample(pairs_to(500), 23, 2) != drawn


def test_every_line_is_drawn_equally_often():
    """5 of 29 lines are drawn 2,000 times: 345 hits are expected for each, with standard deviation (2000 * 5/29 *
    24/29)^0.5 = 17."""
    hits = Counter(chain.from_iterable(reservoir_sample(pairs_to(29), 5, seed) for seed in range(2000)))
    assert len(hits) == 29
    assert all(abs(count - 345) < 5 * 17 for count in hits.values())


def test_vocabularies_without_end_are_refused(unigram, monkeypatch):
    monkeypatch.setattr("seq2seq.tokenizers.vocabulary.MAX_PIECES", 5)
    words = [f"w{number}" for number in range(7)]
    for read in (lambda: Tokenizer(unigram.model), lambda: Words.from_bytes(Words(words).model),
                 lambda: MarianVocabulary(b"", {word: index for index, word in enumerate(words)})):
        with pytest.raises(TokenizerError, match="pieces; at most 5 are read"):
            read()
