"""Messages with branches: each is translated as a sentence, and the result has the target's plural categories."""

import time

import pytest

from seq2seq.documents.messages import parse_message
from seq2seq.formats.block import DocumentError
from seq2seq.formats.placeholders import Placeholders


def marked(text, language):
    """Return a message with `T:` before each translated branch."""
    message = parse_message(text)
    return message.assemble([f"T:{branch}" for branch in message.branches], language)


@pytest.mark.parametrize(("text", "branches"), [
    ("{n, plural,\n one {A dog.}\n other {# dogs.}\n}", ("A dog.", "{n, #} dogs.")),
    ("You have {n, plural, =0 {no dogs} one {# dog} other {# dogs}}.",
     ("You have no dogs.", "You have {n, #} dog.", "You have {n, #} dogs.")),
    ("{g, select, male {He has {n, plural, one {# dog} other {# dogs}}} other {They left}} {day}.",
     ("He has {n, #} dog {day}.", "He has {n, #} dogs {day}.", "They left {day}.")),
    ("{n, plural, one {# dog} other {# dogs}} and {n, plural, one {its owner} other {their owners}}",
     ("{n, #} dog and its owner", "{n, #} dogs and their owners")),
    ("{n, plural, other {{{n}} dogs}}", ("{{n}} dogs",)),
    ("It''s '{'{name}'}' {n, plural, other {dogs'}'}}", ("It's {,0}{name}{,2} dogs{,3}",)),
    ("{d, date, '{'yyyy'}'} {n, plural, other {#}}", ("{,0} {n, #}",)),
    ("{0,choice,0#no dogs|1#one dog|1<{0} dogs}", ("no dogs", "one dog", "{0} dogs")),
    ("There {0,choice,0#are no files|1#is one file|1<are {0,number,integer} files} in {1}.",
     ("There are no files in {1}.", "There is one file in {1}.", "There are {0,number,integer} files in {1}.")),
    ("{0,choice,0#it's|1#don''t '{' {0}}", ("it's", "don't {,0} {0}")),
    ("0#no dogs|1#one dog|2#two dogs", ("no dogs", "one dog", "two dogs")),
    ("no dogs | one dog | {n} dogs", ("no dogs", "one dog", "{n} dogs")),
    ("{0} none|[1,19] some|[20,*] many", ("none", "some", "many")),
    ("(0)[no dogs];(1)[a dog];(2-inf)[{{count}} dogs]", ("no dogs", "a dog", "{{count}} dogs")),
    ("dog|dogs", ("dog", "dogs")), ("car {'|'} x | cars {'|'} x", ("car {'|'} x", "cars {'|'} x")),
    ("{{PLURAL:$1|One page|$1 pages}} of [[User:$2|a]]",
     ("One page of [[User:{,0}|a]]", "{,0} pages of [[User:{,1}|a]]")),
    ("{{GENDER:$1|He|She}} has {{plural:$2|0=no dogs|a dog|$2 {{x|y}}}}",
     ("He has no dogs", "He has a dog", "He has {,0} {{x|y}}", "She has no dogs", "She has a dog",
      "She has {,0} {{x|y}}")),
    ("{{PLURAL:$1|{{GENDER:$2|his|her}} dog|dogs}} {{GENDER:$2}}",
     ("his dog {{GENDER:$2}}", "her dog {{GENDER:$2}}", "dogs {{GENDER:$2}}")),
    ("system;monitor;process;", ("system", "monitor", "process"))])
def test_branches_are_whole_sentences(text, branches):
    assert parse_message(text).branches == branches
    assert parse_message(text).assemble(branches, "ru") == text


@pytest.mark.parametrize("text", [
    "Dogs &amp;cats&amp;", "A dog.",
    "{name} has {0, number} dogs", "Use {n, plural} for numbers", "Type a | b.", "Press (yes | no)",
    "Run `ls | wc` now", "on|off", "|", "a || b", "5 < 6 | a", "see a; b; c;", "width:2px;",
    "A | B | C | D | E | F | G", "{{#if a | b}}", "(a)[b]"])
def test_other_texts_have_no_branches(text):
    assert parse_message(text) is None


def test_a_pipe_in_the_syntax_of_a_format_divides_no_forms():
    assert parse_message("%|1$d| dogs of %|2$d| dogs", ("boost",)) is None
    assert parse_message("dog of |a b| and dog", ("rst",)) is None
    assert parse_message("dog | {% if a | b %} dogs", ("template",)).branches == ("dog", "{% if a | b %} dogs")


RUSSIAN = "=1 {T:A dog.} one {T:# dogs.} few {T:# dogs.} many {T:# dogs.} other {T:# dogs.}"


@pytest.mark.parametrize(("text", "language", "result"), [
    ("{n, plural, one {A dog.} other {# dogs.}}", "de", "{n, plural, one {T:A dog.} other {T:# dogs.}}"),
    ("{n, plural, one {A dog.} other {# dogs.}}", "ja", "{n, plural, other {T:# dogs.}}"),
    ("{n, plural, one {A dog.} other {# dogs.}}", "ru", f"{{n, plural, {RUSSIAN}}}"),
    ("{VAR_PLURAL, plural, one {a minute} other {\U000f0000 minutes}}", "ru",
     "{VAR_PLURAL, plural, =1 {T:a minute} one {T:\U000f0000 minutes} few {T:\U000f0000 minutes} "
     "many {T:\U000f0000 minutes} other {T:\U000f0000 minutes}}"),
    ("{n, plural, one {dog} other {dogs}}", "ru", "{n, plural, one {T:dog} few {T:dogs} many {T:dogs} other {T:dogs}}"),
    ("{n, plural,\n one {# dog}\n other {# dogs}\n}", "pl",
     "{n, plural,\n one {T:# dog}\n few {T:# dogs}\n many {T:# dogs}\n other {T:# dogs}\n}"),
    ("{n,plural,=0{none}one{# dog}other{# dogs}}", "ar",
     "{n,plural,=0{T:none}zero{T:# dogs}one{T:# dog}two{T:# dogs}few{T:# dogs}many{T:# dogs}other{T:# dogs}}"),
    ("{n, plural, offset:1 =0 {x} one {you and # other} other {you and # others}}", "ja",
     "{n, plural, offset:1 =0 {T:x} other {T:you and # others}}"),
    ("{n, plural, offset:1 one {you and another} other {you and # others}}", "lt",
     "{n, plural, offset:1 =2 {T:you and another} one {T:you and # others} few {T:you and # others} "
     "many {T:you and # others} other {T:you and # others}}"),
    ("{n, selectordinal, one {#st} two {#nd} few {#rd} other {#th}} dog", "it",
     "{n, selectordinal, many {T:#th dog} other {T:#th dog}}"),
    ("{g, select, male {He} other {They}} left", "ru", "{g, select, male {T:He left} other {T:They left}}"),
    ("{n, plural, one {# dog} other {# dogs}} and {m, plural, one {# cat} other {# cats}}", "ja",
     "{n, plural, other {{m, plural, other {T:{n, number} dogs and # cats}}}}"),
    ("{m, plural, offset:1 other {# cats}} and {n, plural, other {# dogs}}", "ja",
     "{n, plural, other {{m, plural, offset:1 other {T:# cats and {n, number} dogs}}}}"),
    ("Issue #5: {n, plural, other {# dogs}}", "ja", "{n, plural, other {T:Issue '#'5: # dogs}}"),
    ("{n, plural, other {{g, select, male {#} other {# x}}}}", "ja",
     "{n, plural, other {{g, select, male {T:#} other {T:# x}}}}"),
    ("{n, plural, one {# dog} other {# dogs}}", "xx", "{n, plural, one {T:# dog} other {T:# dogs}}"),
    ("{0,choice,0#no dogs|1#one dog|1<{0} dogs}", "ru", "{0,choice,0#T:no dogs|1#T:one dog|1<T:{0} dogs}"),
    ("There {0,choice,0#are none|1#is one} in {1}.", "ru",
     "{0,choice,0#T:There are none in {1}.|1#T:There is one in {1}.}"),
    ("{{PLURAL:$1|a dog|$1 dogs}}", "ru", "{{PLURAL:$1|1=T:a dog|T:$1 dogs|T:$1 dogs|T:$1 dogs|T:$1 dogs}}"),
    ("{{PLURAL:$1|0=none|$1 dog|$1 dogs}}", "ja", "{{PLURAL:$1|0=T:none|T:$1 dogs}}"),
    ("{{GENDER:$1|he|she|they}}", "ru", "{{GENDER:$1|T:he|T:she|T:they}}"),
    ("no dogs | one dog | {n} dogs", "ru", "T:no dogs | T:one dog | T:{n} dogs"),
    ("{0} none|[1,19] some|[20,*] many", "ru", "{0} T:none|[1,19] T:some|[20,*] T:many"),
    ("a day|:count days", "ru", "T::count days|T::count days|T::count days"),
    ("a day|:count days", "ja", "T::count days"), ("a day|:count days", "de", "T:a day|T::count days"),
    ("{0} none|:count day|:count days", "pl", "{0} T:none|T::count day|T::count days|T::count days"),
    ("(0)[none];(1-inf)[some]", "ru", "(0)[T:none];(1-inf)[T:some]"), ("a;b;", "ru", "T:a;T:b;")])
def test_the_result_has_the_categories_of_the_target_language(text, language, result):
    assert marked(text, language) == result


@pytest.mark.parametrize(("text", "translation", "result"), [
    ("{n, plural, other {the {name}}}", "l'{name}", "{n, plural, other {l’{name}}}"),
    ("{n, plural, other {the dog}}", "l'ami", "{n, plural, other {l'ami}}"),
    ("{n, plural, other {don''t}}", "l'ami", "{n, plural, other {l''ami}}"),
    ("{n, plural, other {# dogs}}", "№ #1 {x}", "{n, plural, other {№ '#'1 '{'x'}'}}"),
    ("{0,choice,0#a|1#b}", "l'ami|x", "{0,choice,0#l’ami/x|1#l’ami/x}"),
    ("{{PLURAL:$1|a|b}}", "it's [[x|{y}]] | z", "{{PLURAL:$1|it's [[x|{y}]] / z}}"),
    ("dog | dogs", "a|b", "a/b | a/b"), ("a;b;", "x; y", "x, y;x, y;")])
def test_signs_of_the_structure_in_a_translation_are_escaped(text, translation, result):
    message = parse_message(text)
    assert message.assemble([translation for _ in message.branches], "ja") == result


def test_numbers_and_arguments_are_placeholders():
    message = parse_message("'{'{n, plural, offset:1 other {# {a/b} {0, number} {{x}}}}")
    assert message.branches == ("{,0}{n, #1} {,2} {0, number} {{x}}",)
    assert [message.branches[0][begin:end] for begin, end in Placeholders().spans(message.branches[0])] == [
        "{,0}", "{n, #1}", "{,2}", "{0, number}", "{{x}}"]


@pytest.mark.slow
@pytest.mark.parametrize("text", [
    "{n, plural, " * 100_000, "{n, plural, one {" * 50_000, "{n, plural, other {a}} " * 40_000, "{" * 1_000_000,
    "{a, select, other {x}}" * 40_000, "'{" * 500_000 + "{n, plural, other {a}}", "{n, plural, other {" + "'" * 900_000,
    "{n, plural, " + "one {a} " * 100_000, "0#" * 400_000 + "|", "a|" * 400_000, "1#a|" * 200_000 + "b", "{ " * 400_000,
    "(0)[a];" * 100_000 + "x", "a;" * 400_000, "{n, plural" + " " * 900_000,
    "{n, plural, other {" + "{x} " * 50_000 + "}}", "{{PLURAL:" * 100_000, "{{PLURAL:$1|" + "a|" * 300_000 + "}}",
    "{{PLURAL:$1|" + "[[a|" * 200_000, "{{GENDER:$1|a}}" * 60_000])
def test_hostile_messages_take_linear_time(text):
    begin = time.perf_counter()
    try:
        message = parse_message(text)
        if message:
            message.assemble([f"x{branch}" for branch in message.branches], "ar")
    except DocumentError:
        pass
    assert time.perf_counter() - begin < 10
