"""Vocabulary sizes that depend on the amount of text. `model.base` is tested with the recipes."""

import pytest

from seq2seq.tokenizers.vocabulary_size import RESERVED_PIECES, smaller_vocabulary_size, vocabulary_size


@pytest.mark.parametrize(("pairs", "size"), [
    (500, 3_400), (5_000, 6_900), (20_000, 11_000), (160_000, 22_000), (1_000_000, 33_000), (50_000_000, 33_000),
])
def test_the_vocabulary_grows_with_the_cube_root_of_the_text_up_to_32000_subwords(pairs, size):
    """Pairs of 210 characters in an alphabet of 103."""
    assert vocabulary_size(210 * pairs, 103) == size


def test_every_character_has_a_piece_however_little_text_there_is():
    assert all(vocabulary_size(characters, alphabet) > RESERVED_PIECES + alphabet
               for characters in (0, 1, 7, 11_000) for alphabet in (0, 1, 101, 997, 7_919, 20_011))


def test_sizes_have_two_significant_digits():
    for characters in range(0, 10**8, 999_983):
        assert set(str(vocabulary_size(characters, 83))[2:]) <= {"0"}


def test_the_largest_possible_vocabulary_is_rounded_down_where_the_alphabet_fits():
    assert smaller_vocabulary_size(6_149, 97) == 6_100
    assert smaller_vocabulary_size(367, 97) == 360
    assert smaller_vocabulary_size(367, 103) == 367                             # 259 + 103 characters and more
