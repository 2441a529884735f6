"""Vocabularies of whole words: encoding, decoding, unknown words and damaged files."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from seq2seq.errors import TokenizerError
from seq2seq.recipe import TokenizerSection
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, UNKNOWN_ID, Tokenizers, Words, train_tokenizers
from seq2seq.tokenizers.whole_words import position_fault, position_vocabulary, train_words

# Letters, marks, numbers, punctuation and symbols.
WORD = strategies.text(strategies.characters(categories=["L", "M", "N", "P", "S"]), min_size=1, max_size=7)


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(strategies.lists(WORD, min_size=1, max_size=11), strategies.randoms())
def test_text_of_known_words_survives_encoding_and_decoding(words, random):
    known = train_words([" ".join(words)], 300)
    line = " ".join(random.choices(words, k=11))
    again = Words.from_bytes(known.model)
    for vocabulary in (known, again):
        (ids,) = vocabulary.encode([line])
        assert vocabulary.decode([ids]) == [line] == vocabulary.decode_pieces([vocabulary.pieces(ids)])
        assert min(ids) > END_ID and max(ids) < vocabulary.vocab_size
    assert again.fingerprint == known.fingerprint


def test_words_stand_between_any_white_space():
    known = train_words(["5 7", "11"], 300)
    assert known.encode([" 7\t5\u2003 11\r", "", "  "]) == [[4, 3, 5], [], []]


def test_unknown_words_are_unknown_and_start_and_end_vanish():
    known = train_words(["a b"], 300)
    assert known.encode(["b c <s> </s> <unk>"]) == [[4, *[UNKNOWN_ID] * 4]]
    assert known.decode([[START_ID, 4, UNKNOWN_ID, 3, END_ID]]) == ["b <unk> a"]
    assert known.pieces([UNKNOWN_ID, START_ID, END_ID, 3]) == ["<unk>", "<s>", "</s>", "\u2581a"]
    assert known.piece_bytes == [b"", b"", b"", b" a", b" b"]


def test_the_most_frequent_words_are_kept_and_the_first_of_equals():
    known = train_words(["z b a", "b c", "c b"], 3 + END_ID + 1)
    assert known.words == ["b", "c", "z"]
    assert known.vocab_size == 6


def test_words_that_are_written_like_symbols_are_words():
    known = train_words(["<s> </s> <unk>"], 300)
    assert known.encode(["</s> <s> <unk>"]) == [[4, 3, 5]]
    assert known.decode([[4, 3, 5]]) == ["</s> <s> <unk>"]


def test_a_translation_never_holds_symbols_or_control_characters():
    known = train_words(["a b\x00 c\x7f d"], 300)
    assert known.never_generated_ids == [UNKNOWN_ID, START_ID, 4, 5]


def test_flat_ids_and_samples_are_the_same_ids():
    known, lines = train_words(["a b c"], 300), ["c a", "", "b x b"]
    flat, offsets = known.encode_flat(lines)
    assert (flat.dtype, offsets.dtype) == (np.int64, np.int64)
    assert [flat[begin:end].tolist() for begin, end in zip(offsets, offsets[1:], strict=False)] == known.encode(lines)
    assert known.sample(lines, 0.3, 7) == known.encode(lines, threads=3) == known.encode(lines)


def test_an_empty_text_has_no_words():
    with pytest.raises(TokenizerError):
        train_words(["", "  "], 300)


@pytest.mark.parametrize("joint", [True, False])
def test_word_vocabularies_of_two_languages_survive_saving_and_loading(tmp_path, joint):
    section = TokenizerSection(type="words", joint=joint)
    both = train_tokenizers([("a b", "c"), ("d", "c e")], section, seed=1)
    assert [both.source.vocab_size, both.target.vocab_size] == ([8, 8] if joint else [6, 5])
    both.save(tmp_path)
    for again in (Tokenizers.load(tmp_path), Tokenizers.from_files(both.files())):
        assert again.files() == both.files() and again.joint == joint
        assert again.target.encode(["e c a"]) == both.target.encode(["e c a"])


def test_a_damaged_word_vocabulary_is_refused(tmp_path):
    model = train_words(["one two three é"], 300).model
    for damaged in (model[:-1], model[:-4], model + b"more\n", model.replace(b"words 4", b"words 5"),
                    model.replace(b"two", b"one"), model.replace(b"words 4", b"words four"),
                    model.replace(b"\xa9", b"")):
        (tmp_path / "tokenizer.model").write_bytes(damaged)
        with pytest.raises(TokenizerError):
            Tokenizers.load(tmp_path)


# Positions


def test_position_p_has_the_id_of_the_end_plus_p():
    numbers = position_vocabulary(13)
    assert numbers.encode(["1 3 2", "13 14 0 x"]) == [[END_ID + 1, END_ID + 3, END_ID + 2], [15, 0, 0, 0]]
    assert numbers.decode([[3, 5, 4]]) == ["1 3 2"]


def test_a_pointer_network_trains_no_target_tokenizer():
    both = train_tokenizers([("20 5 10", "1 3 2")], TokenizerSection(type="words"), seed=1, target_positions=7)
    assert both.source.words == ["20", "5", "10"]
    assert both.target.words == list("1234567")
    assert not both.joint


@pytest.mark.parametrize(("target", "wrong"), [
    ("1 3 2", None), ("", None), ("2 2", None), ("1 4", "4"), ("0", "0"), ("-1", "-1"), ("two", "two"), ("01", "01"),
    ("1.0", "1.0"), ("²", "²"),
])
def test_a_target_of_a_pointer_holds_positions_of_its_source(target, wrong):
    fault = position_fault("20 5 10", target)
    assert fault is None if wrong is None else f"'{wrong}'" in fault
