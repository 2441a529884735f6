"""Placeholders are kept by every model; terms of a glossary are required where the model did not use them."""

import random
import re
from dataclasses import dataclass, field, replace

import pytest
from document_translators import Protected
from hypothesis import strategies as st
from property_checks import few_and_many

from seq2seq.data.glossary import Glossary, find_words
from seq2seq.documents.adherence import adherence, recording_adherence
from seq2seq.errors import RequestError
from seq2seq.formats.inline_tags import Tag
from seq2seq.formats.placeholders import Placeholders
from seq2seq.recipe import DecodingSection, Languages
from seq2seq.tokenizers.source import Source
from seq2seq.translation.protected_translation import _inserted
from seq2seq.translation.translation import Translation
from seq2seq.translation.word_confidence import Word

ENGLISH_TO_GERMAN = Languages(source="en", target="de")


@dataclass
class Model:
    """Translator with a function instead of a model. It appends required phrases that are missing."""

    function: object
    can_require: bool = True
    context: int = 0
    decoding: DecodingSection = DecodingSection(safety_net=False)
    languages: Languages = ENGLISH_TO_GERMAN
    asked: list = field(default_factory=list)

    def translate(self, lines, *, progress=None, **decoding):
        found = []
        for request in lines:
            self.asked.append(request)
            if request.required and not self.can_require:
                raise RequestError("line 1: the search found no translation")
            text = self.function(request.text) if request.text.strip() else request.text
            missing = [phrase for phrase in request.required if phrase not in text]
            found.append([Translation(" ".join([text, *missing]), -1.0, -1.0, 3, 1 if text.strip() else 0)])
        return found


def translated(function, line, **settings):
    ((best, *_),) = Protected(Model(function), **settings).translate([line])
    return best


def test_a_translation_that_keeps_the_placeholders_is_taken_as_it_is():
    best = translated(lambda text: text.replace("Hello", "Hallo"), "Hello {Name}!")
    assert (best.text, best.retried) == ("Hallo {Name}!", False)


def test_placeholders_that_the_model_damages_are_inserted_into_a_translation_without_them():
    best = translated(lambda text: re.sub(r"[^A-Za-z ]", "", text).lower(), "Delete {count} files")
    assert (best.text, best.retried) == ("delete {count} files", True)


@pytest.mark.parametrize(("source", "expected"), [
    ('file "%s" not found', 'file not found "%s"'), ("%s: no such file", "%s: no such file"),
    ("cannot open file: {reason}", "cannot open file: {reason}"), ("a (%d) b", "a b (%d)"), ('"%s""%s"', '"%s""%s"')])
def test_quotes_stay_around_placeholders_and_colons_beside_them(source, expected):
    def model(text):
        return re.sub(r"[^A-Za-z ]", "", text).strip()

    best = translated(model, source)
    assert sorted(best.text) == sorted(expected) and Placeholders().counts(source) == Placeholders().counts(best.text)
    assert source[:1] != "%" or best.text == source


def test_invented_and_repeated_placeholders_are_removed():
    assert translated(lambda text: text + " {name} {name}", "Hello").text == "Hello"
    assert translated(lambda text: text + " " + text, "Hello {x}").text.count("{x}") == 1


def test_text_of_placeholders_alone_is_not_translated():
    model = Model(lambda text: "x" + text)
    found = Protected(model).translate(["{count} / %s", "", "  "])
    assert [best.text for best, *_ in found] == ["{count} / %s", "", "  "]
    assert [request.text for request in model.asked] == ["", "", "  "]


def test_tags_are_placed_without_another_search():
    model = Model(lambda text: text.replace("A red car", "Une voiture rouge"))
    ((best,),) = Protected(model).translate(["A <b>red</b> <i>car</i> {x}"])
    assert (best.text, best.retried) == ("Une <b>voiture</b> <i>rouge</i> {x}", False)
    assert [request.text for request in model.asked] == ["A red car {x}"]


def test_every_translation_of_a_line_has_its_tags():
    class Several(Model):
        def translate(self, lines, **decoding):
            return [[replace(one, text=text) for text in ("ein Hund", "Hund", one.text)]
                    for (one,) in super().translate(lines, **decoding)]

    ((*found,),) = Protected(Several(str)).translate(["a <b>dog</b>"])
    assert [one.text for one in found] == ["ein <b>Hund</b>", "<b>Hund</b>", "a <b>dog</b>"]


@pytest.mark.parametrize("constraints", [{"prefix": "Der"}, {"required": ("roter Hund",)}])
def test_tags_do_not_stand_before_a_prefix_or_inside_of_a_required_phrase(constraints):
    model = Model(lambda text: "Der " + re.sub("<[^>]*>", "", text))
    ((best, *_),) = Protected(model).translate([Source("<b>Der</b> roter Hund", **constraints)])
    assert best.text.startswith(constraints.get("prefix", "")) and constraints.get("required", ("",))[0] in best.text


def test_a_users_own_pattern_is_kept():
    best = translated(str.lower, "Press KEY-1 now", placeholders=Placeholders([r"KEY-\d"]))
    assert best.text == "press KEY-1 now"


FORMS = [
    "{}", "{0}", "{name}", "{name!r:>8}", "{n, plural, one {# item} other {# items}}", "%s", "%d", "%1$s",
    "%-5.2f", "%(user)s", "%%", "%@", "%lu", "%1", "%n", "{{ user.name }}", "{{{raw}}}", "${total}", "#{x}",
    "%{x}", "$name", "$t(key)", ":count", "&amp;", "&#8230;", "<b>", "</b>", "<br/>",
    "https://example.org/a?b=c", "me@example.org", "/etc/passwd", r"C:\Temp\x", "🙂", "🇩🇪", "#tag", "@user",
    "__init__", "[[Page]]"]
WORDS = ["Delete", "file", "of", "Hello", "the", "items", "not", "found", "please", "10", "(", ")", ",", ":", "."]


def string(generator):
    """Return a string of words and placeholders, some without a space between them."""
    parts = [generator.choice(FORMS if generator.random() < 0.35 else WORDS) for _ in range(generator.randint(1, 12))]
    return "".join(part + generator.choice([" ", " ", " ", ""]) for part in parts).strip()


def hostile(generator):
    """Return a translator that loses, repeats, changes and reorders what it reads."""
    def translate(text):
        words = [word for word in text.split() if generator.random() > 0.2]
        if generator.random() < 0.3:
            generator.shuffle(words)
        words += [generator.choice([*words, generator.choice(FORMS), "Wort"]) for _ in range(generator.randint(0, 2))]
        return "".join(character for character in " ".join(words) if generator.random() > 0.03)
    return translate


@pytest.mark.parametrize("count", [150, pytest.param(5_000, marks=pytest.mark.slow)])
def test_generated_strings_keep_their_placeholders(count):
    generator, placeholders = random.Random(1), Placeholders()
    strings = [string(generator) for _ in range(count)]
    found = Protected(Model(hostile(generator))).translate(strings)
    unchanged = different = 0
    for source, (best, *_) in zip(strings, found, strict=True):
        before, after = placeholders.counts(source), placeholders.counts(best.text)
        assert before <= after or "lost_placeholder" in best.faults, (source, best.text)
        different += before != after                                            # such as `items#tag` beside a tag
        unchanged += source == best.text and placeholders.spans(source) != [(0, len(source))]
    assert unchanged < 0.3 * count and different <= max(1, 0.002 * count)


# Terms


def glossary(*lines, source="en", target="nds"):
    """Return a glossary. The default target language has no lemmatizer, because German takes seconds to load."""
    return Glossary.parse("\n".join(lines), "terms.tsv", source, target)


def test_a_term_that_the_model_uses_in_any_inflection_is_not_retried():
    best = translated(lambda text: "die Katzen schlafen", "the cats sleep", glossary=glossary("cat\tKatze"))
    assert (best.text, best.retried, best.lost_terms) == ("die Katzen schlafen", False, ())


@pytest.mark.slow
def test_forms_of_a_word_have_a_common_lemma():
    terms = glossary("goose\tGans", "house\tHaus", target="de")
    found = terms.find("geese and houses")
    assert len(found) == 2 and terms.missing(found, "Gänse und Häuser") == []


def test_single_columns_are_terms_that_stay_unless_all_lines_share_a_separator():
    for text, name in (("a;b\nc;d\ne", "a.csv"), ("a;b\nc,d", "a.csv"), ("a,b", "a.tsv"), ('"a,b"', "a.csv")):
        assert Glossary.parse(text, name, "en", "de").find("a b")


def test_a_lost_term_becomes_a_required_phrase():
    best = translated(lambda text: "die Miezen schlafen", "the cats sleep", glossary=glossary("cat\tKatze"))
    assert (best.text, best.retried, best.lost_terms) == ("die Miezen schlafen Katze", True, ())


def test_a_term_that_cannot_be_required_is_reported():
    translator = Protected(Model(lambda text: "Miezen", can_require=False), glossary=glossary("cat\tKatze"))
    found = translator.translate(["cats", "dogs", "a cat"])
    assert [(best.text, best.lost_terms) for best, *_ in found] == [
        ("Miezen", ("Katze",)), ("Miezen", ()), ("Miezen", ("Katze",))]
    translator = Protected(Model(lambda text: text.replace("cats", "Miezen"), can_require=False),
                                     glossary=glossary("cat\tKatze"))
    ((best, *_),) = translator.translate(["cats of {name}"])
    assert (best.text, best.lost_terms) == ("Miezen of {name}", ("Katze",))


def test_terms_are_inline_if_the_model_was_trained_for_them():
    model = Model(lambda text: text)
    ((best, *_),) = Protected(model, glossary=glossary("cat\tKatze"), terms_inline=True).translate(["a cat"])
    assert model.asked[0].text == "a ⦅ Katze⦆"
    assert best.text == "a Katze" and not best.lost_terms


def test_the_longest_term_is_taken_and_terms_do_not_overlap():
    found = glossary("main\tHaupt", "main page\tHauptseite", "page\tSeite").find("The main pages, page by page. MAIN")
    assert [one.term.source for one in found] == ["main page", "page", "page", "main"]


@pytest.mark.parametrize(("term", "text", "matches"), [
    ("US", "us and them", False), ("US", "in the US", True), ("cat", "CAT", True), ("cat", "cats", True),
    ("cat", "category", False), ("Apple", "an apple", False), ("apple", "Apples", True), ("火车", "坐火车去", True)])
def test_terms_match_whole_words_in_any_inflection(term, text, matches):
    assert bool(glossary(f"{term}\tx").find(text)) == matches


@pytest.mark.parametrize(("language", "term", "text", "found"), [
    ("hi", "काम", "मैं ३ किमी चलता हूँ", []), ("hi", "काम", "यह काम है", ["काम"]), ("hi", "बस", "बसंत और बस", ["बस"]),
    *[pytest.param("tr", *case, marks=pytest.mark.slow) for case in (               # its lemmatizer loads for seconds
        ("ışık", "IŞIK yandı", ["IŞIK"]), ("istanbul", "İSTANBUL", ["İSTANBUL"]), ("ilik", "ILIK su", []))],
    ("bn", "\u09b8\u09ae\u09af\u09bc", "\u09b8\u09ae\u09df", ["\u09b8\u09ae\u09df"]),             # two normal forms
    ("vi", "Bác sĩ", "Ba\u0301c si\u0303 mua", ["Ba\u0301c si\u0303"]),
    ("km", "កែ", "ឆ្កែ", []), ("km", "កែ", "ខ្ញុំកែវា", ["កែ"]),
    ("en", "istanbul", "ISTANBUL", ["ISTANBUL"])])
def test_terms_match_whole_words_in_every_script(language, term, text, found):
    terms = glossary(f"{term}\tx", source=language)
    assert [text[one.begin:one.end] for one in terms.find(text)] == found
    assert len(find_words(term, text, language, exact=True)) == len(found)


def test_a_term_without_translation_and_one_that_is_not_to_be_translated_stay_as_they_are():
    found = glossary("# products", "", "Cloud Suite", "Window\tFenster\tdo not translate").find("Cloud Suite Window")
    assert [one.term.translations for one in found] == [("Cloud Suite",), ("Window",)]


def test_each_occurrence_of_a_term_needs_its_translation():
    terms = glossary("cat\tKatze", "cat\tKater")
    found = terms.find("a cat and a cat")
    assert [term.source for term in terms.missing(found, "eine Katze")] == ["cat"]
    assert terms.missing(found, "eine Katze und ein Kater") == []
    assert terms.missing(found, "zwei Katzen, Katern", exact=True) != []


TEXTS = st.text("aB1 {}%$:/<>&;#@\\.…ä狗👍\u200d'\"\n", max_size=60)


@few_and_many(10, 1000, TEXTS, TEXTS)
def test_any_pair_of_texts_keeps_its_placeholders(source, output):
    source, output = source.replace("\n", " ").strip(), output.replace("\n", " ").strip()
    best = translated(lambda text: output, source)
    assert Placeholders().counts(best.text) == Placeholders().counts(source)


@pytest.mark.parametrize(("text", "found"), [
    ("请联系foo@bar.com查看", ["foo@bar.com"]), ("请访问https://example.com了解更多信息。", ["https://example.com"]),
    ("詳細はwww.example.comをご覧ください。", ["www.example.com"]), ("https://example.com을 보세요", ["https://example.com"]),
    ("https://de.wikipedia.org/wiki/Käse ist", ["https://de.wikipedia.org/wiki/Käse"]),
    ("查看/x或 /etc/hosts文件", ["/etc/hosts"]), ("请@anna看$name是", ["@anna", "$name"]),
    ("bread for 10 €/month", []), ("3 %/Jahr (und)/oder", []), ("in /home/jürgen/a.txt.", ["/home/jürgen/a.txt"]),
    ("(/home/a) x=/usr/bin './b' ~/c", ["/home/a", "/usr/bin", "./b", "~/c"]),
    ("@müller $größe jürgen.müller@köln.de", ["@müller", "$größe", "jürgen.müller@köln.de"]),
    ("иван@почта.рф www.пример.рф/путь", ["иван@почта.рф", "www.пример.рф/путь"]),
    ("在 /usr/bin/目录 下 /home/用户/文档", ["/usr/bin/目录", "/home/用户/文档"]),
    ("/usr/lib에서 /a.문서", ["/usr/lib", "/a"]), ("路径：/usr/bin（/etc/x）、/y。", ["/usr/bin", "/etc/x", "/y"]),
    ("{dir}/bin/x %HOME%/bin", ["{dir}/bin/x", "%HOME%/bin"]),
    ("https://zh.wikipedia.org/wiki/中国 https://a.b/?q=日本&x=1",
     ["https://zh.wikipedia.org/wiki/中国", "https://a.b/?q=日本&x=1"]),
    ("请访问https://a.b/了解更多。/.bashrc ../..", ["https://a.b/", "/.bashrc"]), ("5%/Jahr, he/she, s/he", [])])
def test_placeholders_end_where_text_begins(text, found):
    assert [text[begin:end] for begin, end in Placeholders().spans(text)] == found


def test_placeholders_in_forced_text_stay():
    class Forcing(Model):
        def translate(self, lines, *, progress=None, **decoding):
            self.asked += lines
            forced = [" ".join([request.prefix, request.text, *request.required, *decoding.get("require", ())])
                      for request in lines]
            return [[Translation(text.strip(), -1.0, -1.0, 3)] for text in forced]

    translator = Protected(Forcing(None))
    for request, expected in ((Source("ein Hund", prefix="#Hund"), "#Hund ein Hund"),
                              (Source("ein Hund", required=("@anna", "www.kinder.de")),
                               "ein Hund @anna www.kinder.de")):
        assert translator.translate([request])[0][0].text == expected
    assert translator.translate(["ein %s"], require=["@anna"])[0][0].text == "ein %s @anna"
    damaged = Protected(Model(lambda text: "#Hund Hund"))
    assert damaged.translate([Source("ein %s", prefix="#Hund")])[0][0].text == "#Hund Hund"


def test_words_have_their_confidence_where_placeholders_were_inserted():
    class Confident(Model):
        def translate(self, lines, **options):
            return [[replace(one, words=tuple(Word(word, 0.5) for word in one.text.split()))]
                    for one, in super().translate(lines)]

    model = Confident(lambda text: re.sub(r"[^A-Za-z ]", "", text).lower())
    ((best,),) = Protected(model).translate(["%s: Delete {count} files"])
    assert best.text == "%s: delete {count} files"
    assert [(word.text, word.confidence) for word in best.words] == [
        ("%s:", 1.0), ("delete", 0.5), ("{count}", 1.0), ("files", 0.5)]


def test_adherence_counts_exact_forms_and_inflections_of_each_term_of_a_sentence():
    terms = glossary("cat\tKatze", "dog\tHund")
    scores = adherence(terms, ["a cat and a dog", "cats", "a bird"], ["die Katzen und der HUND", "Miezen", "ein Vogel"])
    assert {name: (round(score.value, 1), score.signature) for name, score in scores.items()} == {
        "terms_exact": (33.3, "terms:3|form:exact"), "terms": (66.7, "terms:3|form:inflected")}
    assert adherence(terms, ["a bird"], ["ein Vogel"]) == {}


def test_terms_of_the_context_are_not_counted():
    model = Model(lambda text: "eine Katze" if "cat" in text else "sie schläft", context=1)
    translator, lines = Protected(model, glossary=glossary("cat\tKatze")), ["␞ a cat", "a cat␞ it sleeps"]
    translate, adherences = recording_adherence(translator)
    translate(lines)
    scores, = adherences
    assert scores["terms"].signature == "terms:1|form:inflected"


def test_a_test_set_without_any_term_of_the_glossary_is_reported(capsys):
    translator = Protected(Model(str.upper), glossary=glossary("cat\tKatze"))
    translate, adherences = recording_adherence(translator)
    translate(["a bird"])
    assert adherences == [{}]
    assert "no source contains a term of the glossary" in capsys.readouterr().err


def test_a_sentence_that_lacks_an_inline_term_is_translated_from_its_own_words():
    model = Model(lambda text: "ein Tier")
    ((best, *_),) = Protected(model, glossary=glossary("cat\tKatze"), terms_inline=True).translate(["a cat"])
    assert [(request.text, request.required) for request in model.asked] == [("a ⦅ Katze⦆", ()), ("a cat", ("Katze",))]
    assert "Katze" in best.text and not best.lost_terms


@pytest.mark.parametrize(("source", "translation", "places", "expected"), [
    ("Open <b>%s</b> in %s", "Offen in", (5, 5, 5, 8), "Offen <b>%s</b> in %s"),
    ("Press &lt;Enter&gt; to go", "Enter drücken", (0, 5), "&lt;Enter&gt; drücken")])
def test_inserted_placeholders_have_the_spaces_of_their_own_place(source, translation, places, expected):
    placeholders = [source[begin:end] for begin, end in Placeholders().spans(source)]
    tags = [Tag(place, raw) for place, raw in zip(places, placeholders, strict=True)]
    assert _inserted(translation, tags, source, placeholders) == expected
