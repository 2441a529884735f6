"""A required phrase belongs in place of the words that its term is aligned to, not after the final stop."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from document_translators import Protected

from seq2seq.data.glossary import FoundTerm, Glossary, Term
from seq2seq.errors import RequestError
from seq2seq.recipe import DecodingSection, Languages
from seq2seq.tokenizers.line_splitting import alignment_units
from seq2seq.tokenizers.source import Source
from seq2seq.translation.term_placement import TermPlacement, after_end, sentence_count
from seq2seq.translation.translation import Translation
from seq2seq.translation.word_confidence import Word


@pytest.fixture(autouse=True)
def no_lemmatizer(monkeypatch):
    """Compare words by their beginnings, because a lemmatizer takes seconds to load."""
    monkeypatch.setattr("seq2seq.data.words._lemmatizer", lambda language: None)


LINKS = {"er": "he", "trägt": "wears", "einen": "a", "hut": "hat", "hund": "dog", "der": "the", "hunde": "dogs",
         "帽子": "hat", "sie": "she", "fahrrad": "mountain bike", "wasser": "water", "im": "in"}


def align(pairs):
    """Return attention of 0.9 between words that `LINKS` links, and 0.02 elsewhere."""
    found = []
    for source, translation in pairs:
        old, new = ([text[begin:end].lower() for begin, end in alignment_units(text)] for text in (source, translation))
        found.append(np.array([[0.9 if word in LINKS.get(one, one).split() else 0.02 for one in old] for word in new]))
    return found


@dataclass
class Model:
    """Translator with a table instead of a model. It appends the required phrases to the translation."""

    table: dict
    log_probability: float = -9.0
    forced: dict = field(default_factory=dict)
    context: int = 0
    decoding: DecodingSection = DecodingSection(safety_net=False)
    languages: Languages = Languages(source="de", target="en")

    def translate(self, lines, *, progress=None, **decoding):
        found = []
        for request in lines:
            text = self.table[request.text]
            required = [one for one in (*request.required, *decoding.get("require", self.decoding.require))
                        if one not in text]
            words = tuple(Word(word, 0.5) for word in text.split())
            if required:
                text = self.forced.get(request.text) or " ".join([text, ", ".join(required)]) + "."
            found.append([Translation(text, -1.0, self.log_probability if required else -3.0, 3, words=words)])
        return found


def translated(source, translation, terms, requests=(), language="en", align=align, **settings):
    """Return the best translation of a line by a model that appends required phrases."""
    glossary = Glossary.parse("\n".join(terms), "terms.tsv", "de", language) if terms else None
    model = Model({source: translation}, languages=Languages(source="de", target=language), **settings)
    translator = Protected(model, glossary=glossary, align=align)
    ((best, *_),) = translator.translate([Source(source, required=tuple(requests))])
    return best


@pytest.mark.parametrize(("source", "translation", "terms", "expected"), [
    ("Er trägt einen Hut.", "He wears a hat.", ["Hut\tsombrero"], "He wears a sombrero."),
    ("Er trägt einen Hut", "He wears a hat", ["Hut\tsombrero"], "He wears a sombrero"),
    ("Er trägt einen Hut!", "He wears a hat! ", ["Hut\tsombrero"], "He wears a sombrero! "),
    ("„Er trägt einen Hut.“", "“He wears a hat.”", ["Hut\tten-gallon hat"], "“He wears a ten-gallon hat.”"),
    ("Hut (Hund)?", "Hat (dog)?", ["Hut\tsombrero", "Hund\tmutt"], "Sombrero (mutt)?"),
    ("Hut! Hut!", "Hat! Hat!", ["Hut\tsombrero"], "Sombrero! Sombrero!"),
    ("Hut!", "Hat!", ["Hut\tiPad"], "iPad!"),
    ("Er trägt einen Hut.", "He wears a hat.", ["Hut\tumbrella"], "He wears a umbrella."),     # u may be a consonant
    ("Er trägt einen Hut.", "He wears a hat.", ["Hut\torb"], "He wears an orb."),
    ("Er trägt einen Hut.", "He wears an hat.", ["Hut\tcap"], "He wears a cap."),
    ("Er trägt einen Hut.", "He wears a hat.", ["Hut\tthe crown"], "He wears the crown."),
    ("Hunde im Wasser", "Dogs in the water", ["Wasser\taqua"], "Dogs in the aqua"),
    ("Er trägt Fahrrad.", "He wears a mountain bike.", ["Fahrrad\tvelocipede"], "He wears a velocipede."),
    ("Er trägt Fahrrad.", "He wears a mountain-bike's.", ["Fahrrad\tvelocipede"], "He wears a velocipede's.")])
def test_a_phrase_that_the_search_tacks_on_takes_the_place_of_the_words_of_its_term(source, translation, terms,
                                                                                    expected):
    best = translated(source, translation, terms)
    assert (best.text, best.retried, best.lost_terms, best.misplaced_terms) == (expected, False, (), ())
    assert set(best.placed_terms) == {line.split("\t")[1] for line in terms}


def test_a_phrase_beside_the_word_that_it_should_replace_takes_its_place():
    best = translated("Er trägt einen Hut.", "He wears a hat.", ["Hut\tsombrero"],
                      forced={"Er trägt einen Hut.": "He wears a sombrero hat."})
    assert (best.text, best.placed_terms) == ("He wears a sombrero.", ("sombrero",))


def test_a_phrase_that_the_search_puts_in_place_is_taken_as_it_is():
    def linked(pairs):
        return [np.maximum(weights, np.array([[0.9 * (text[slice(*unit)] == "sombrero" and source[slice(*one)] == "Hut")
                                               for one in alignment_units(source)] for unit in alignment_units(text)]))
                for weights, (source, text) in zip(align(pairs), pairs, strict=True)]

    best = translated("Er trägt einen Hut.", "He wears a hat.", ["Hut\tsombrero"], align=linked, log_probability=-3.5,
                      forced={"Er trägt einen Hut.": "He is wearing his sombrero."})
    assert (best.text, best.retried, best.placed_terms) == ("He is wearing his sombrero.", True, ())


@pytest.mark.parametrize("align", [None, lambda pairs: [None] * len(pairs),
                                   lambda pairs: [0 * weights for weights in align(pairs)]])
def test_a_phrase_whose_term_is_aligned_to_nothing_stays_and_is_reported(align):
    best = translated("Er trägt einen Hut.", "He wears a hat.", ["Hut\tsombrero"], align=align)
    assert (best.text, best.placed_terms) == ("He wears a hat. sombrero.", ())
    assert best.misplaced_terms == ("sombrero",) and best.retried


@pytest.mark.parametrize("constraints", [{"prefix": "He wears a hat"}, {"required": ("hat",)}])
def test_a_term_does_not_break_the_constraints_of_a_line(constraints):
    glossary = Glossary.parse("Hut\tsombrero", "terms.tsv", "de", "en")
    model = Model({"Er trägt einen Hut.": "He wears a hat."})
    translator = Protected(model, glossary=glossary, align=align)
    ((best, *_),) = translator.translate([Source("Er trägt einen Hut.", **constraints)])
    assert best.text == "He wears a hat. sombrero." and best.misplaced_terms == ("sombrero",)
    ((best, *_),) = translator.translate(["Er trägt einen Hut."], forbid=["sombrero"])
    assert not best.placed_terms


@pytest.mark.parametrize("kind", [{"sampling": True}, {"diverse_groups": 2}])
def test_a_term_that_no_search_can_require_is_put_in_place(kind, monkeypatch):
    model = Model({"Er trägt einen Hut.": "He wears a hat."})
    translate = model.translate

    def refusing(lines, **options):
        if any(line.required for line in lines if isinstance(line, Source)):
            raise RequestError("line 1: required phrases work only with beam search")
        return translate(lines, **options)

    model.translate = refusing
    glossary = Glossary.parse("Hut\tsombrero", "terms.tsv", "de", "en")
    ((best, *_),) = Protected(model, glossary=glossary, align=align).translate(
        ["Er trägt einen Hut."], **kind)
    assert (best.text, best.lost_terms) == ("He wears a sombrero.", ())


def test_the_alignment_is_that_of_the_text_without_placeholders():
    def strict(pairs):
        assert not any("%" in text or "<" in text for pair in pairs for text in pair)
        return align(pairs)

    best = translated("Er trägt %s Hut.", "He wears %s hat.", ["Hut\tsombrero"], align=strict)
    assert (best.text, best.placed_terms, best.faults) == ("He wears %s sombrero.", ("sombrero",), ())


def test_placeholders_are_not_replaced_by_terms():
    best = translated("Hut {hat}", "{hat}", ["Hut\tsombrero"])
    assert best.text.count("{hat}") == 1


@pytest.mark.parametrize(("source", "required", "expected"), [
    ("Er trägt einen Hat.", "hat", "He wears a hat."),                          # already there
    ("Er trägt einen Boot.", "Boot", "He wears a Boot.")])
def test_a_required_phrase_takes_the_place_of_the_source_word_that_equals_it(source, required, expected):
    translation = expected if required == "hat" else "He wears a boat."

    def linked(pairs):
        return [np.array([[0.9 if (old, new) in (("boot", "boat"), ("boot", "boot")) else 0.02 for old in sides[0]]
                          for new in sides[1]])
                for sides in ([[text[begin:end].lower() for begin, end in alignment_units(text)] for text in pair]
                              for pair in pairs)]

    best = translated(source, translation, [], [required], align=linked)
    assert (best.text, best.retried) == (expected, False)
    assert best.placed_terms == (() if required == "hat" else ("Boot",))


def test_a_required_phrase_without_a_source_word_is_reported_where_it_stands_after_the_end():
    best = translated("Er trägt einen Hut.", "He wears a hat.", [], ["sombrero"])
    assert (best.text, best.misplaced_terms) == ("He wears a hat. sombrero.", ("sombrero",))
    assert not best.placed_terms
    recipes = DecodingSection(safety_net=False, require=["sombrero"])
    assert translated("Er trägt einen Hut.", "He wears a hat.", [], decoding=recipes).misplaced_terms == ("sombrero",)


@pytest.mark.parametrize(("text", "phrase", "alone"), [
    ("He waits. sombrero.", "sombrero", True), ("He waits.” “sombrero”", "sombrero", True),
    ("¿Espera? ¡sombrero!", "sombrero", True), ("他在等。帽子。", "帽子", True), ("他在等！（帽子）", "帽子", True),
    ("He wears a sombrero.", "sombrero", False), ("sombrero", "sombrero", False), ("Mr. sombrero", "sombrero", False),
    ("He waits. A sombrero waits.", "sombrero", False), ("他戴帽子。", "帽子", False), ("เขาสวมหมวก", "หมวก", False),
    ("... sombrero", "sombrero", False)])
def test_a_phrase_after_the_final_stop_stands_alone(text, phrase, alone):
    span = text.index(phrase), text.index(phrase) + len(phrase)
    assert bool(after_end(text, [span])) == alone


def test_phrases_that_stand_after_the_end_together_are_all_found():
    text = "He waits. orb, gentleman caller."
    assert after_end(text, [(10, 13), (15, 31)]) == [(10, 13), (15, 31)]
    assert [sentence_count(one) for one in (text, "He waits. He goes", "他在等。帽子", "Mr. X", "")] == [2, 2, 2, 1, 1]


def test_all_characters_of_a_word_without_spaces_are_replaced():
    source, translation = "Er trägt Hut", "他戴帽子。"
    weights = np.full((len(alignment_units(translation)), 3), 0.02)
    weights[2:4, 2] = 0.9
    placement = TermPlacement(source, [FoundTerm(9, 12, Term("Hut", ("草帽",)))], translation, weights, "zh")
    assert placement.text == "他戴草帽。"


def test_words_keep_their_confidence_beside_a_term_that_was_put_in_place():
    best = translated("Er trägt einen Hut.", "He wears a hat.", ["Hut\tsombrero"])
    assert [(word.text, word.confidence) for word in best.words] == [
        ("He", 0.5), ("wears", 0.5), ("a", 0.5), ("sombrero.", 1.0)]


def test_lines_without_terms_are_translated_once():
    model = Model({"Er wartet.": "He waits."})
    calls = []
    model.translate, translate = lambda lines, **options: calls.append(lines) or translate(lines, **options), \
        model.translate
    translator = Protected(model, glossary=Glossary.parse("Hut\tsombrero", "t.tsv", "de", "en"),
                                     align=lambda pairs: pytest.fail("nothing is to be aligned"))
    ((best, *_),) = translator.translate(["Er wartet."])
    assert (best.text, len(calls)) == ("He waits.", 1)
    assert replace(best, words=()) == Translation("He waits.", -1.0, -3.0, 3)
