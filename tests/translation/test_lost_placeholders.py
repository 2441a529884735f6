"""Check at the end of protection: a lost, doubled or changed placeholder is a fault, reported with its place."""

import random
from dataclasses import dataclass

import pytest
from document_translators import Protected
from test_protected_translation import Model, hostile, string

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.block import Block
from seq2seq.formats.inline_tags import Tag
from seq2seq.formats.placeholders import Placeholders, paired_tags
from seq2seq.recipe import DecodingSection
from seq2seq.tokenizers.source import Source
from seq2seq.translation.output_faults import LOST_PLACEHOLDER


def faults(source, translation, **constraints):
    """Return the faults of a translation that cannot be repaired, because its prefix has a placeholder."""
    model = Model(lambda text: f"#x {translation}")
    ((best, *_),) = Protected(model).translate([Source(source, prefix="#x", **constraints)])
    assert best.text == f"#x {translation}"
    return best.faults


@pytest.mark.parametrize(("source", "translation"), [
    ("ein %s", "a"), ("ein %s", "a % s"), ("ein %s", "a %s %s"), ("%s und %s", "%s and"), ("{0} Datei", "{0 } file"),
    ("Datei {name}", "file {Name}"), ("<b>Hund</b>", "<b>dog<b>"), ("<b>Hund</b>", "</b>dog<b>"),
    ("<i><b>Hund</b></i>", "<i><b>dog</i></b>"), ("Hund", "dog %s"), ("in $HOME/thunar", "in $HOME /thunar"),
    ("a&nbsp;b", "a&Nbsp;b"), ("bei http://x.org:80/a?b=c", "at http://x.org:80/a?b")])
def test_a_changed_placeholder_is_a_fault(source, translation):
    assert faults(source, translation) == (LOST_PLACEHOLDER,)


@pytest.mark.parametrize(("source", "translation"), [
    ("ein %s", "a %s"), ("%s und %d", "%d and %s"), ("<b>Hund</b> <br> <b>da</b>", "<b>x</b> <b>dog</b> <br>"),
    ("</b> Hund <b>", "<b> dog </b>"), ("Hund", "dog")])
def test_a_kept_placeholder_is_no_fault(source, translation):
    assert faults(source, translation) == ()


def test_a_prefix_or_a_phrase_with_a_placeholder_of_the_line_does_not_double_it():
    model = Model(lambda text: "#x a #x")
    ((best, *_),) = Protected(model).translate([Source("#x ein", prefix="#x")])
    assert best.text.count("#x") == 1 and best.faults == ()


def test_generated_strings_have_a_fault_exactly_if_a_placeholder_is_wrong():
    generator, placeholders = random.Random(3), Placeholders()
    sources = [Source(string(generator), prefix="#x" * (number % 2)) for number in range(150)]
    found = Protected(Model(hostile(generator))).translate(sources)
    wrong = 0
    for source, n_best in zip(sources, found, strict=True):
        for one in n_best:
            before, after = placeholders.counts(source.text), placeholders.counts(one.text)
            kept = before <= after <= before + placeholders.counts(source.prefix) and (
                paired_tags(source.text) <= paired_tags(one.text))
            assert (LOST_PLACEHOLDER in one.faults) != kept, (source.text, one.text)
            wrong += not kept
    assert 20 < wrong < 75                                                      # only lines with a prefix


def test_swapped_tags_are_repaired():
    ((best, *_),) = Protected(Model(lambda text: " ".join(reversed(text.split())).lower())).translate(
        ["<b> Hund </b> da"])
    assert paired_tags(best.text) == {"b": 1} and best.faults == ()


def test_a_line_that_can_only_be_copied_is_a_fault(monkeypatch):
    monkeypatch.setattr("seq2seq.translation.protected_translation._inserted", lambda *arguments: "")
    ((best, *_),) = Protected(Model(lambda text: "the cat")).translate(["Katze %s"])
    assert best.text == "Katze %s" and best.faults == ("copied",)


def test_faults_are_those_of_the_final_text():
    model = Model(lambda text: "1 2 3" if "%" in text else "so " * 20 + " ".join(
        word for word in text.split() if word.isdigit()), decoding=DecodingSection(safety_net=True))
    ((best, *_),) = Protected(model).translate(["Er läuft %s"])
    assert best.text.endswith("%s") and "loop" in best.faults


@pytest.mark.parametrize("source", ["{n, plural, one {eine Datei ist da} other {viele sind da}} da",
                                    "{a} " * 30 + "da"])
def test_words_of_placeholders_are_no_copied_text(source):
    model = Model(lambda text: text.replace("da", "x") if "{" in text else "there",
                  decoding=DecodingSection(safety_net=True))
    ((best, *_),) = Protected(model).translate([source])
    assert Placeholders().counts(best.text) == Placeholders().counts(source) and best.faults == ()


@pytest.mark.parametrize("escape", ["\\n", "\\t", "{x}"])
def test_words_around_a_placeholder_without_spaces_are_not_joined(escape):
    model = Model(lambda text: "".join(one for one in text if one.isalpha() or one == " ").upper())
    ((best, *_),) = Protected(model).translate([f"eins{escape}zwei"])
    assert best.text == f"EINS{escape}ZWEI"
    assert any(request.text == "eins zwei" for request in model.asked)


# Documents


@dataclass
class Plain:
    """Document whose blocks are rendered one behind the other."""

    blocks: list
    left = left_out = ()

    def render(self, translations, language):
        return "|".join(block.serialize(str) for block in translations).encode()


def joined(block, translate, placeholders=None):
    """Return sentences, translated document, and places that lost placeholders."""
    lost = []
    document = DividedDocument(Plain([block]), placeholders=placeholders or Placeholders())
    text = document.join(list(map(translate, document.sentences)), "en",
                         report=lambda place, fault: lost.append(place))
    return document.sentences, text.decode(), lost


def test_no_sentence_ends_inside_of_a_placeholder():
    text = "Ja. %{Eine. Datei} Nein. [[a. B]] Tür. Da."
    sentences, _, lost = joined(Block(text, place="line 3"), str)
    assert sentences == ["Ja.", "%{Eine. Datei} Nein.", "[[a. B]] Tür.", "Da."]
    assert lost == []


def test_no_line_ends_inside_of_a_placeholder():
    source = "Ein Hund\nmit {{ viel.namen | upper }} da"
    _, text, lost = joined(Block(source, keeps_lines=True), lambda text: text.replace("Ein Hund mit", "Hund"))
    assert "{{ viel.namen | upper }}" in text and "\n" in text and lost == []


def test_spaces_inside_of_placeholders_stay():
    sentences, text, lost = joined(Block("Ein\u00a0Hund\t[[a\u00a0]]"), lambda text: text.replace("Ein", "Der"))
    assert (sentences, text, lost) == (["Ein Hund [[a\u00a0]]"], "Der Hund [[a\u00a0]]", [])


def test_a_block_that_lost_a_placeholder_when_it_was_joined_is_reported_with_its_place():
    block = Block("Hund {\nname } da", place="line 7")                            # the line feed becomes a space
    assert joined(block, lambda text: text.replace("Hund", "dog"))[2] == ["line 7"]
    assert joined(Block("Hund {name} da", place="line 7"), lambda text: text.replace("Hund", "dog"))[2] == []
    own = Placeholders([r"K-\d\. X"])
    assert joined(Block("Hund. K-1. X da", place="line 7"), str.lower, own)[2] == []
    assert joined(Block("Hund. K-1. X da", place="line 7"), str, own)[0] == ["Hund.", "K-1. X da"]


def test_a_block_whose_sentences_lost_a_placeholder_is_not_reported_again():
    assert joined(Block("Ja. Ein %s"), lambda text: text.replace(" %s", ""))[2] == []


def test_tags_of_a_block_that_are_torn_are_reported(monkeypatch):
    tags = (Tag(0, "<b>", "open", 0), Tag(4, "</b>", "close", 0))
    assert joined(Block("Hund da", tags), lambda text: "a dog")[2] == []
    monkeypatch.setattr("seq2seq.documents.divided_document.place_tags", lambda source, tags, text, one: tags[::-1])
    assert joined(Block("Hund da", tags, "line 2"), lambda text: "a dog")[2] == ["line 2"]
