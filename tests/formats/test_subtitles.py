"""Subtitles: cues are joined into sentences and divided again; times, numbers, notes and styles keep their bytes."""

import re
from collections import Counter
from dataclasses import replace

import pysubs2
import pytest
from document_translators import shortened, translated
from hypothesis import strategies as st
from property_checks import few_and_many
from test_round_trips import sample

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.subtitles import AssDocument, SrtDocument, VttDocument


def cues(*texts, gap=0.1):
    """Return an SRT of cues of a second each."""
    stamp = "00:{:02}:{:06.3f}"
    begins = [(1 + gap) * index for index in range(len(texts))]
    return "\n".join(f"{index}\n{stamp.format(int(begin // 60), begin % 60)} --> "
                     f"{stamp.format(int((begin + 1) // 60), (begin + 1) % 60)}\n{text}\n"
                     for index, (text, begin) in enumerate(zip(texts, begins, strict=True), 1)).encode()


def read(data, form="srt"):
    return [event.text for event in pysubs2.SSAFile.from_string(data.decode(), format_=form)]


@pytest.mark.parametrize(("texts", "gap", "expected"), [
    (["One two", "three.", "Four"], 0.1, ["One two three.", "Four"]), (["One", "two"], 3.1, ["One", "two"]),
    (["One", "- two"], 0.1, ["One", "two"]), (["a"] * 11, 0.1, [" ".join("a" * 8), "a a a"]),
    (["One", "<v Bob>two"], 0.1, ["One", "two"]), (["日本", "語"], 0.1, ["日本語"]),
    (["One", "123", "two"], 0.1, ["One", "two"]),
    (["[sighs]", "one"], 0.1, ["[sighs]", "one"]), (["What?\"", "one"], 0.1, ["What?\"", "one"]),
    (["-5 a", "b"], 0.1, ["-5 a b"]),
])
def test_a_block_ends_at_a_sentence_a_gap_or_another_speaker(texts, gap, expected):
    data = cues(*texts, gap=gap)
    document = VttDocument(b"WEBVTT\n\n" + data) if "<v" in texts[1] else SrtDocument(data)
    assert [block.text for block in document.blocks] == expected


def test_a_translation_without_balanced_borders_is_divided_by_shares():
    document = SrtDocument(cues("one two", "three four five six."))
    block, = document.blocks
    for position in (0, 1, len("eins zwei drei vier fünf")):
        moved = replace(block, text="eins zwei drei vier fünf", tags=(replace(block.tags[0], position=position),))
        assert read(document.render([moved], "de")) == ["eins", "zwei drei vier fünf"]
    moved = replace(block, text="一二三四五六七八九", tags=(replace(block.tags[0], position=0),))
    assert read(document.render([moved], "zh")) == ["一二", "三四五六七八九"]


@pytest.mark.parametrize(("language", "translation", "lines"), [
    ("th", "กาน้ำชา", ["กา", "น้ำชา"]), ("km", "មាឆ្កែ", ["មា", "ឆ្កែ"]), ("zh", "一二三四五六七", ["一二三", "四五六七"]),
])
def test_no_line_or_cue_begins_between_a_letter_and_its_marks(language, translation, lines):
    for texts in (["one\ntwo."], ["one", "two."]):
        document = SrtDocument(cues(*texts))
        block, = document.blocks
        moved = replace(block, text=translation, tags=tuple(replace(tag, position=0) for tag in block.tags))
        result = document.render([moved], language).decode()
        assert [line for line in result.splitlines() if not line.isascii()] == lines


def test_a_tag_around_a_border_is_closed_and_opened_again():
    document = SrtDocument(cues("a <i>b c</i>", "d e."))
    block, = document.blocks
    opened, closed, border = block.tags
    tags = (replace(opened, position=2), replace(border, position=4), replace(closed, position=5))
    result = document.render([replace(block, text="x y z u.", tags=tags)], "en").decode()
    assert "x <i>y</i>\n" in result and "<i>z</i> u." in result


def test_text_cannot_become_markup():
    assert read(translated(SrtDocument(cues("one")), lambda text: "a --> b\n\nc")) == ["a \u2192 b c"]
    assert b"a &lt;b&gt; --&gt;" in translated(VttDocument(b"WEBVTT\n\n" + cues("one")), lambda text: "a <b> -->")
    film = AssDocument(sample("film.ass").encode())
    assert b"\\{\\i1\\}\\\xe2\x81\xa0N" in translated(film, lambda text: "{\\i1}\\N" * 4)


def test_a_number_without_an_empty_line_before_it_is_no_text():
    data = cues("one.", "two.").replace(b"one.\n\n", b"one.\n")
    document = SrtDocument(data)
    assert [block.text for block in document.blocks] == ["one.", "two."]
    assert translated(document) == data.replace(b"one", b"ONE").replace(b"two", b"TWO")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_text_after_an_empty_line_of_an_srt_cue_belongs_to_the_cue(end):
    data = b"1\n00:00:01,000 --> 00:00:02,000\nWe saw\n\n \n<i>a dog</i>\n\n\n2\n\n00:00:09,000 --> 00:00:10,000\n" \
           b"Born in\n\n3\n00:00:11,000 --> 00:00:12,000\n\n4\n00:00:19,000 --> 00:00:20,000\nyes\n\nno\n"
    data = data.replace(b"\n", end.encode())
    document = SrtDocument(data)
    assert [block.text for block in document.blocks] == ["We saw a dog", "Born in", "yes no"]
    assert document.render(document.blocks, "en") == data
    joined = data.decode().replace(f"We saw{end}{end} {end}<i>a dog</i>", f"WE SAW{end}<i>A DOG</i>").replace(
        f"yes{end}{end}no", f"YES{end}NO").replace("Born in", "BORN IN").encode()
    assert translated(document) == joined
    text = VttDocument(b"WEBVTT\n\n" + data)
    assert [block.text for block in text.blocks] == ["We saw", "Born in", "yes"]


def test_the_byte_order_mark_is_not_part_of_the_first_section():
    text = "\ufeff[Events]\nFormat: Start, End, Text\nDialogue: 0:00:01.00,0:00:02.00,one\n"
    assert translated(AssDocument(text.encode())) == text.replace("one", "ONE").encode()


VTT = "WEBVTT\n\n00:00:01.000 --> 00:00:04.000\n"
SRT = "1\n00:00:01,000 --> 00:00:04,000\n"
EVENTS = "[Events]\nFormat: Start, End, Text\nDialogue: 0:00:01.00,0:00:04.00,"
HEADS = {VttDocument: VTT, SrtDocument: SRT, AssDocument: EVENTS}


def backwards(sentence):
    return " ".join(reversed(sentence.split()))


def joined(document, translate):
    """Return the sentences of a document, and the document with its sentences translated."""
    divided = DividedDocument(document)
    return divided.sentences, divided.join([translate(sentence) for sentence in divided.sentences], "en").decode()


@pytest.mark.parametrize(("kind", "text", "sentences", "expected"), [
    # Timestamps, karaoke and positions
    (VttDocument, "Never <00:00:01.500>gonna <00:00:02.000>give you", ["Never gonna give you"],
     "you <00:00:01.500>give <00:00:02.000>gonna Never"),
    (VttDocument, "<00:00:01.500><c>Never</c> <00:00:02.000><c>gonna</c> <00:00:02.500><c>give</c>",
     ["Never gonna give"], "<00:00:01.500><c>give</c> <00:00:02.000><c>gonna</c> <00:00:02.500><c>Never</c>"),
    (VttDocument, "we<00:00:01.500><c> saw</c><00:00:02.000><c> it</c>", ["we saw it"],
     "it <00:00:01.500><c>saw</c> <00:00:02.000><c>we</c>"),
    (AssDocument, r"{\k20}Never {\k15}gonna {\kf30}give {\K10}you", ["Never gonna give you"],
     r"{\k20}you {\k15}give {\kf30}gonna {\K10}Never"),
    (SrtDocument, "{\\an8}Hello you\n{\\an8}my dogs", ["Hello you my dogs"], "{\\an8}dogs my\n{\\an8}you Hello"),
    (SrtDocument, "Hello\\Nyou", ["Hello you"], "you\\NHello"),
    (SrtDocument, "C:\\New you", ["C:\\New you"], "you C:\\New"),
    (SrtDocument, "{\\an8}\nHello you", ["Hello you"], "{\\an8}\nyou Hello"),
    (AssDocument, r"{\pos(1,2)\an8}Red {\c&HFF&}dogs{\c&HFFFFFF&} run", ["Red dogs run"],
     r"{\pos(1,2)\an8}run {\c&HFF&}dogs {\c&HFFFFFF&}Red"),
    # Overrides that are reset enclose words; drawings and comments are kept.
    (AssDocument, r"A {\c&HFF&}dark{\c} dog {\b1}runs{\r} now", ["A dark dog runs now"],
     r"now {\b1}runs{\r} dog {\c&HFF&}dark{\c} A"),
    (AssDocument, r"{\p1}m 0 0 l {\c&HFF&}9 9{\p0}Hello you", ["Hello you"],
     r"{\p1}m 0 0 l {\c&HFF&}9 9{\p0}you Hello"),
    (AssDocument, r"{\p1}m 0 0 l 9 9{\p0}", [], r"{\p1}m 0 0 l 9 9{\p0}"),
    (AssDocument, r"{a note}One{another} two", ["One two"], r"{a note}two {another}One"),
    (SrtDocument, "{y:i}A {i}red{/i} dog", ["A red dog"], "{y:i}dog {i}red{/i} A"),
    (SrtDocument, '<font color="#f00">Red</font> dogs', ["Red dogs"], 'dogs <font color="#f00">Red</font>'),
    # Voices, classes, languages and ruby
    (VttDocument, "<v Ann>Hello you.\n<v Bob>Hi Ann!", ["Hello you.", "Hi Ann!"],
     "<v Ann>you. Hello\n<v Bob>Ann! Hi"),
    (VttDocument, "<v Ann>Hello my</v> <v.loud Bob>Hi you</v>", ["Hello my", "Hi you"],
     "<v Ann>my Hello</v> <v.loud Bob>you Hi</v>"),
    (VttDocument, "<v Ann>Hello my</v>\nShe laughs", ["Hello my", "She laughs"], "<v Ann>my Hello</v>\nlaughs She"),
    (VttDocument, "A <c.red.big>red</c> <lang de>Hund</lang>", ["A red Hund"],
     "<lang de>Hund</lang> <c.red.big>red</c> A"),
    (VttDocument, "a <ruby>漢<rt>kan</rt></ruby> z", ["a 漢 z"], "z <ruby>漢<rt>kan</rt></ruby> a"),
    (VttDocument, "a <ruby.x>漢<rt.y>kan</ruby> z", ["a 漢 z"], "z <ruby.x>漢<rt.y>kan</ruby> a"),
    # Entities and marks of direction
    (VttDocument, "&lrm;You&nbsp;&amp; me &lt;3&rlm;", ["You & me <3"], "&lt;3 me &amp; You"),
    (SrtDocument, "\u202bHello you\u202c", ["Hello you"], "you Hello"),
    # Dialogues and songs
    (SrtDocument, "<i>- Hi you.</i>\n- Go away.", ["Hi you.", "Go away."], "<i>- you. Hi</i>\n- away. Go"),
    (AssDocument, r"- Hi you.\N{\i1}- Go away.{\i0}", ["Hi you.", "Go away."], r"- you. Hi\N{\i1}- away. Go{\i0}"),
    (SrtDocument, ">> Hi you.\n>>Go away.", ["Hi you.", "Go away."], ">> you. Hi\n>>away. Go"),
    (VttDocument, "&gt;&gt; Hi you.\n&gt;&gt; Go away.", ["Hi you.", "Go away."],
     "&gt;&gt; you. Hi\n&gt;&gt; away. Go"),
    (SrtDocument, "♪ I love you ♪\n♪ You love\nme ♪", ["I love you", "You love me"],
     "♪ you love I ♪\n♪ me love\nYou ♪"),
    (SrtDocument, "# La le #\n# Lo lu #", ["La le", "Lo lu"], "# le La #\n# lu Lo #"),
    # Lines
    (SrtDocument, "One two\nthree four\nfive six", ["One two three four five six"],
     "six five\nfour three\ntwo One"),
    (AssDocument, r"One four\Nfive nine", ["One four five nine"], r"nine five\Nfour One"),
])
def test_markup_stays_in_its_cue_and_order(kind, text, sentences, expected):
    head = HEADS[kind]
    document = kind(f"{head}{text}\n".encode())
    assert document.render(document.blocks, "en").decode() == f"{head}{text}\n"
    found, result = joined(document, backwards)
    assert (found, result) == (sentences, f"{head}{expected}\n")


@pytest.mark.parametrize("text", [
    SRT.replace("\n", "\r\r\n") + "Hello my\r\r\ndogs.\r\r\n\r\r\n2\r\r\n00:00:05,000 --> 00:00:06,000\r\r\nYes.\r\r\n",
    SRT + "\nHello my\ndogs.\n\n2\n00:00:05,000 --> 00:00:06,000\n \nYes.\n",
    SRT.removeprefix("1\n") + "Hello my\ndogs.\n\n00:00:05,000 --> 00:00:06,000\nYes.\n",
    SRT.replace("4,000\n", "4,000  X1:1 X2:2 Y1:3 Y2:4\n") + "Hello my\ndogs.\n\n"
    "2\n00:00:05.000 --> 00:00:06.000\nYes.\n",
    SRT + "Hello my\ndogs.\n\n2\n00:00:05,000 --> 00:00:06,000\n\n3\n00:00:07,000 --> 00:00:08,000\nYes.\n",
    VTT.replace("WEBVTT\n", "WEBVTT - a title\nKind: captions\n\nNOTE Never\nhere\n\nSTYLE\n::cue { color: red }\n\n"
                "REGION\nid:a\n") + "Hello my\ndogs.\n\n"
    "chapter-2\n00:05.000 --> 00:06.000 align:start line:0\nYes.\n\nNOTE b\n",
    VTT.replace("\n", "\r\r\n") + "Hello my\r\r\ndogs.\r\r\n\r\r\n00:05.000 --> 00:06.000\r\r\nYes.\r\r\n",
    VTT + " \nHello my\ndogs.\n \n\n00:05.000 --> 00:06.000\nYes.\n",
])
def test_only_words_are_translated_in_files_as_people_have_them(text):
    kind = VttDocument if text.startswith("WEBVTT") else SrtDocument
    sentences, result = joined(kind(text.encode()), str.upper)
    assert sentences == ["Hello my dogs.", "Yes."]
    assert result == text.replace("Hello my", "HELLO MY").replace("dogs", "DOGS").replace("Yes", "YES")


@pytest.mark.parametrize(("text", "sentences"), [
    ("00:00.000 --> 02:00.000\nIntroduction\n\n02:00.000 --> 04:00.000\nMore dogs\n", ["Introduction", "More dogs"]),
    ("00:00.000 --> 00:02.000\nwe saw\n\n00:02.000 --> 00:02.010\nwe saw\n\n00:02.010 --> 00:04.000\nwe saw\na dog\n",
     ["we saw", "we saw", "we saw a dog"]),
])
def test_chapters_and_repeated_captions_are_not_joined(text, sentences):
    assert joined(VttDocument(f"WEBVTT\n\n{text}".encode()), str.upper)[0] == sentences


WORDS = st.sampled_from(["one", "two.", "Three", "four &amp;", "5", "- six", "♪ so", "\n", "<i>a</i>", "<v Ann>b</v>",
                         "<v Bob>c", "<c.x>d e</c>", "<ruby>f<rt>g</rt></ruby>", "TIME", "TIME", "</c>", "<b>"])


@few_and_many(10, 2000, st.lists(st.lists(WORDS, max_size=9), max_size=6), st.lists(st.integers(0, 20), max_size=12))
def test_times_voices_and_cues_are_the_same_after_any_translation(texts, order):
    source, times = "WEBVTT\n\n", iter(range(100, 1000))
    for index, words in enumerate(texts):
        words = [f"<00:00:{index:02}.{next(times)}>" if word == "TIME" else word for word in words]
        source += f"{index}\n00:00:{index:02}.000 --> 00:00:{index:02}.900 line:{index}%\n{' '.join(words).strip()}\n\n"

    def reordered(sentence):
        words = sentence.split()
        return " ".join(words[index % len(words)] for index in order) or "und"

    _, result = joined(VttDocument(source.encode()), reordered)
    for before, after in zip(vtt_cues(source), vtt_cues(result), strict=True):
        assert after == before
    pairs = re.findall(r"<(/?)(i|c|ruby)\b", result)
    assert Counter(pairs)["", "ruby"] == Counter(pairs)["/", "ruby"]


def vtt_cues(source):
    """Return number, times and settings of each cue, and the timestamps and voices in it, in order."""
    return [(block.split("\n")[:2], re.findall(r"<[\d:.]+>|<v \w+>", block)) for block in re.split("\n\n+", source)[1:]]


TIMES = re.compile(rb"^00:.*-->.*$", re.MULTILINE)
TEXTS = st.lists(st.text("ab .<i>/\n{\\an8}-\u00e4日\x0b", max_size=20), max_size=9)


@few_and_many(10, 2000, TEXTS, st.sampled_from([str.upper, shortened, lambda text: text * 5, lambda text: ""]))
def test_times_stay_with_any_translation(texts, translate):
    for kind, data in ((SrtDocument, cues(*texts)), (VttDocument, b"WEBVTT\n\n" + cues(*texts))):
        document = kind(data)
        assert document.render(document.blocks, "en") == data
        result = translated(document, translate)
        assert TIMES.findall(result) == TIMES.findall(data)


@pytest.mark.parametrize("words", ["ja", "ja gut", "ja gut so", "Donaudampfschiff a b", "a b Donaudampfschiff"])
def test_no_cue_becomes_empty_if_the_translation_has_few_words(words):
    data = "".join(f"{number}\n00:00:0{number},000 --> 00:00:0{number},900\n{text}\n\n" for number, text in enumerate(
        ["and so we have", "a sentence that", "ends here."], 1)).encode()
    document = SrtDocument(data)
    block = document.blocks[0]
    tags = tuple(replace(tag, position=0) for tag in block.tags)
    cues = pysubs2.SSAFile.from_string(document.render([replace(block, text=words, tags=tags)], "de").decode())
    assert all(cue.text for cue in cues)
    assert " ".join(dict.fromkeys(cue.text for cue in cues)) == words


@pytest.mark.parametrize("dash", "-–—―")
def test_speakers_after_any_dash_are_apart(dash):
    cue = f"1\n00:00:01,000 --> 00:00:02,000\n{dash} Yes.\n{dash} No, I will not go there.\n"
    assert [block.text for block in SrtDocument(cue.encode()).blocks] == ["Yes.", "No, I will not go there."]


@pytest.mark.parametrize("words", ["No dogs | one dog", "{n, plural, one {a} other {b}} dogs", "[b]A dog[/b] {% x %}"])
def test_what_programs_read_in_other_formats_is_text_in_subtitles(words):
    cues = "\n\n".join(f"00:0{index}.000 --> 00:0{index}.900\n{words}," for index in range(3))
    divided = DividedDocument(VttDocument(f"WEBVTT\n\n{cues}\n".encode()))
    result = divided.join([sentence.upper() for sentence in divided.sentences], "de").decode()
    assert result.count(f"{words.upper()},") == 3


@pytest.mark.parametrize(("text", "sentences", "expected"), [
    ("BOB: Two dogs\nrun.", ["Two dogs run."], "BOB: TWO DOGS\nRUN."),
    ("- BOB: Two\n- MR. X (V.O.): Car", ["Two", "Car"], "- BOB: TWO\n- MR. X (V.O.): CAR"),
    ("<i>BOB:</i> Two <b>dogs</b>", ["Two dogs"], "<i>BOB:</i> TWO <b>DOGS</b>"),
    (">> [Bob]: Two dogs", ["Two dogs"], ">> [Bob]: TWO DOGS"), ("BOB:\nTwo dogs", ["Two dogs"], "BOB:\nTWO DOGS"),
    ("T-BONE:Two dogs", ["Two dogs"], "T-BONE:TWO DOGS"),
    ("- T-Bo: Two\n- T-Bo: Car", ["Two", "Car"], "- T-Bo: TWO\n- T-Bo: CAR"),
    ("Anna 2: Two\nAnna 2: Car", ["Two", "Car"], "Anna 2: TWO\nAnna 2: CAR"),
    ("\u5c0f\u660e\uff1a\u4f60\u597d\n\u5c0f\u660e\uff1a\u518d\u89c1", ["\u4f60\u597d", "\u518d\u89c1"],
     "\u5c0f\u660e\uff1a\u4f60\u597d\n\u5c0f\u660e\uff1a\u518d\u89c1"),
    # No name is known
    ("Look: two dogs", ["Look: two dogs"], "LOOK: TWO DOGS"), ("HE SAID: RUN", ["HE SAID: RUN"], "HE SAID: RUN"),
    ("He said: two\nHe said: car", ["He said: two He said: car"], "HE SAID: TWO\nHE SAID: CAR"),
])
def test_names_of_speakers_are_kept(text, sentences, expected):
    document = DividedDocument(SrtDocument(cues(text)))
    assert document.sentences == sentences
    assert document.join([one.upper() for one in sentences], "en") == cues(expected)


@pytest.mark.parametrize(("text", "sentences"), [
    ("[door opens] Two dogs", ["[door opens]", "Two dogs"]), ("Two dogs [barks]", ["Two dogs", "[barks]"]),
    ("Two dogs\n[door\nopens]", ["Two dogs", "[door opens]"]), ("<i>[sighs]</i> two dogs", ["[sighs]", "two dogs"]),
    ("(Laughter) Two dogs run. (Applause)", ["(Laughter)", "Two dogs run.", "(Applause)"]),
    ("BOB: [sighs] Two\n- (laughs) Car", ["[sighs]", "Two", "(laughs)", "Car"]),
    ("[door opens] BOB: Two dogs", ["[door opens]", "Two dogs"]), ("Two\n[barks]\ndogs", ["Two", "[barks]", "dogs"]),
    ("\u266a A song \u266a Two dogs", ["A song", "Two dogs"]), ("#A song#", ["A song"]),
    ("# one dog # Two dogs", ["one dog", "Two dogs"]),
    ("\u3010\u7b11\u3011\u4e8c\u5339", ["\u3010\u7b11\u3011", "\u4e8c\u5339"]),
    # Parts of a sentence
    ("Two [or three] dogs", ["Two [or three] dogs"]), ("Two dogs (in red)", ["Two dogs (in red)"]),
    ("(some of) the dogs", ["(some of) the dogs"]),
])
def test_descriptions_of_sounds_and_songs_are_no_part_of_what_is_said(text, sentences):
    document = DividedDocument(SrtDocument(cues(text)))
    assert document.sentences == sentences
    assert document.join([one.upper() for one in sentences], "en").upper() == cues(text).upper()


@pytest.mark.parametrize("line_end", ["\\N", "\\n"])
def test_a_line_end_of_ass_stays_one_of_its_kind(line_end):
    source = ("[Script Info]\n\n[Events]\nFormat: Start, End, Text\n"
              f"Dialogue: 0:00:01.00,0:00:02.00,Two dogs{line_end}run here\n")
    document = DividedDocument(AssDocument(source.encode()))
    assert document.sentences == ["Two dogs run here"]
    assert document.join(["TWO DOGS RUN HERE"], "en").decode().endswith(f",TWO DOGS{line_end}RUN HERE\n")


def test_a_brace_that_ass_escapes_is_text_and_is_escaped_again():
    source = ("[Script Info]\n\n[Events]\nFormat: Start, End, Text\n"
              "Dialogue: 0:00:01.00,0:00:02.00,two \\{red\\} {\\i1}dogs{\\i0}\n")
    document = DividedDocument(AssDocument(source.encode()))
    assert document.sentences == ["two {red} dogs"]
    assert document.join(["TWO {red} DOGS"], "en").decode().endswith(",TWO \\{red\\} {\\i1}DOGS{\\i0}\n")
