"""Spelling of required phrases in the pieces of the target vocabulary."""

from seq2seq.search.phrase_spelling import PhraseSpeller
from seq2seq.tokenizers.marian_vocabulary import MarianVocabulary
from tests.marian_models import pieces_of, sentencepiece_model


def test_a_phrase_can_be_required_of_an_imported_vocabulary_without_byte_pieces():
    model = sentencepiece_model(["狗在跑", "猫在睡", "狗和猫", "小狗睡在家"] * 3, 23)
    names = ["<unk>", "<s>", "</s>", *(piece for piece in pieces_of(model) if piece[0] != "<")]
    vocabulary = MarianVocabulary(model, {name: index for index, name in enumerate(names)})
    required = PhraseSpeller(vocabulary, "zh", ignore_case=False).required_phrase("猫在")
    assert required.phrase.text == "猫在" and required.spellings
    assert {"".join(vocabulary.pieces(ids)) for ids in required.spellings} == {"猫在"}              # in a line
