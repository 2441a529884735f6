"""Syntaxes of formats: what is found, what a reader of the format accepts, and what is text."""

import re
import shutil
import subprocess
import time
from dataclasses import replace

import polib
import pytest

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.po import PoDocument
from seq2seq.formats.syntaxes import GETTEXT_FORMATS, SYNTAXES, find_markup, with_boundaries

# Format flag: text, its markup, and a part of the markup without which msgfmt refuses a translation ("": msgfmt of
# gettext 0.21, which Debian 12 has, does not know the flag, or allows translations without it).
FORMATS = {
    "c": ("%s has %d of %5.2f %% and %lld or %<PRIu64>, %*d, %-10s", "%s %d %5.2f %% %lld %<PRIu64> %*d %-10s", "%lld"),
    "objc": ("%@ has %1d files", "%@ %1d", "%@"), "c++": ("{} has {:d} of {{x}} files", "{} {:d} {{ }}", ""),
    "python": ("%(name)s has %(count)5.1f of 5 %%", "%(name)s %(count)5.1f %%", "%(name)s"),
    "python-brace": ("{name} has {0.x[y]:>5} of {{x}}", "{name} {0.x[y]:>5} {{ }}", "{name}"),
    "java": ("{0} has {1,number,integer} of '{'braces'}' and {2}", "{0} {1,number,integer} '{' '}' {2}", "{0}"),
    "java-printf": ("%s has %d at %tY or %,.2f%n", "%s %d %tY %,.2f %n", "%tY"),
    "csharp": ("{0} has {1,10:N2} of {{x}}", "{0} {1,10:N2} {{ }}", "{1,10:N2}"),
    "javascript": ("%s has %d of %j %%", "%s %d %j %%", "%j"),
    "scheme": ("~a has ~s of ~10,2f ~~", "~a ~s ~10,2f ~~", "~s"),
    "lisp": ("~D: ~:[no files~;some files~] and ~{~A, ~} ~10,'0D done", "~D ~:[ ~; ~] ~{ ~A ~} ~10,'0D", "~10,'0D"),
    "elisp": ("%s has %d of %S %%", "%s %d %S %%", "%S"), "librep": ("%s has %d of %S", "%s %d %S", "%S"),
    "ruby": ("%{name} has %<count>05.1f of %%", "%{name} %<count>05.1f %%", "%{name}"),
    "sh": ("$name has ${count} files", "$name ${count}", "$name"),
    "sh-printf": ("%s has %b files", "%s %b", ""), "awk": ("%s has %5.2f %%", "%s %5.2f %%", "%s"),
    "lua": ("%s has %d of %q", "%s %d %q", "%q"), "object-pascal": ("%s has %d of %8.2f", "%s %d %8.2f", "%d"),
    "modula2": ("%s has %d files", "%s %d", ""), "d": ("%s has %(%d and %) files", "%s %( %d %)", ""),
    "ocaml": ("%s has %d of %Ld and %a files", "%s %d %Ld %a", ""), "smalltalk": ("%1 has %2 of %%", "%1 %2 %%", "%1"),
    "ycp": ("%1 has %2 of %%", "%1 %2 %%", "%1"), "qt": ("%1 has %L2 files", "%1 %L2", "%1"),
    "qt-plural": ("%n file(s) here", "%n", "%n"), "kde": ("%1 has %12 files, %2", "%1 %12 %2", ""),
    "kde-kuit": ("%1 has %2 files", "%1 %2", "%1"), "boost": ("%1% has %2$+5d of %|3$s|", "%1% %2$+5d %|3$s|", "%1%"),
    "tcl": ("%s has %5.2f %%", "%s %5.2f %%", "%s"), "perl": ("%s has %vd %%", "%s %vd %%", "%s"),
    "perl-brace": ("{name} has {count} files", "{name} {count}", "{name}"),
    "php": ("%s has %'010d of %5.2f", "%s %'010d %5.2f", "%s"),
    "gcc-internal": ("%qs has %d of %<code here%> and %qE or %.*s", "%qs %d %< %> %qE %.*s", "%qE"),
    "gfc-internal": ("%s has %d at %L or %C", "%s %d %L %C", "%L"),
    "rust": ("{} has {:>5} of {{x}}", "{} {:>5} {{ }}", ""), "go": ("%[2]s has %[1]d of %v", "%[2]s %[1]d %v", ""),
}


def found(text, *syntax):
    return [text[one.begin:one.end] for one in find_markup(text, syntax)]


def kinds(text, *syntax):
    return [(text[one.begin:one.end], one.kind) for one in find_markup(text, syntax)]


def catalogue(flag, text, translation=""):
    text, translation = (one.replace("\\", "\\\\").replace('"', '\\"') for one in (text, translation))
    return ('msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
            f'#, {flag}-format\nmsgid "{text}"\nmsgstr "{translation}"\n').encode()


def msgfmt_accepts(data):
    return subprocess.run(["msgfmt", "--check", "--use-fuzzy", "-o", "/dev/null", "-"], input=data,
                          capture_output=True, check=False).returncode == 0


def test_each_format_flag_has_a_test():
    assert set(FORMATS) == GETTEXT_FORMATS < set(SYNTAXES)


@pytest.mark.parametrize("flag", FORMATS)
def test_the_directives_of_a_format_are_found(flag):
    text, markup, _ = FORMATS[flag]
    assert found(text, flag) == markup.split()


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="msgfmt of gettext is not installed")
@pytest.mark.parametrize("flag", FORMATS)
def test_msgfmt_accepts_a_translation_that_keeps_the_directives(flag):
    text, _, needed = FORMATS[flag]
    document = PoDocument(catalogue(flag, text))
    assert document.blocks[0].syntax[0] == flag
    pieces = re.split("(" + "|".join(map(re.escape, found(text, flag))) + ")", text)
    upper = "".join(piece if index % 2 else piece.upper() for index, piece in enumerate(pieces))
    result = document.render([replace(document.blocks[0], text=upper)], "de")
    assert upper.encode() in result and msgfmt_accepts(result)
    if needed:
        assert not msgfmt_accepts(catalogue(flag, text, text.replace(needed, "", 1)))
        assert b'msgstr ""\n' in document.render([replace(document.blocks[0], text=upper.replace(needed, "", 1))],
                                                 "de")[-12:]


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="msgfmt of gettext is not installed")
@pytest.mark.parametrize(("flag", "source", "translation", "result"), [
    ("c", "a %s: %d %s", "{1}: {0} {2}", "%2$d: %1$s %3$s"), ("c", "a %d%% of %s", "{2}: {0}{1}", "%2$s: %1$d%%"),
    ("c", "%s of %<PRIu64>", "{1} of {0}", "%2$<PRIu64> of %1$s"), ("c", "a %*d %s", "{1} {0}", ""),
    ("c", "a %1$s %2$d", "{1} {0}", "%2$d %1$s"), ("c", "a %s %s", "{0} {1}", "%s %s"), ("c", "a %s", "{0} {0}", ""),
    ("c", "%s: option '%s%s'", "'{1}{2}': {0}", "'%2$s%3$s': %1$s"), ("c", "a %s %d", "{1}", ""),
    ("python", "a %(a)s %(b)d", "{1} {0}", "%(b)d %(a)s"), ("python", "a %s %d", "{1} {0}", ""),
    ("python-brace", "a {} {:d}", "{1} {0}", "{1:d} {0}"), ("python-brace", "a {} {b}", "{1} {0}", "{b} {}"),
    ("python-brace", "a {} {b} {:d}", "{2} {1} {0}", "{1:d} {b} {0}"), ("lua", "a %s %d", "{1} {0}", ""),
    ("object-pascal", "a %s %d", "{1} {0}", "%1:d %0:s"), ("php", "a %s %d", "{1} {0}", "%2$d %1$s"),
    ("java-printf", "a %s %d%n", "{1} {0}{2}", "%2$d %1$s%n"), ("kde", "a %1 %2", "{1} {0}", "%2 %1"),
    ("ruby", "a %{a} %{b}", "{1} {0}", "%{b} %{a}"), ("sh", "a $a $b", "{1} {0}", "$b $a"),
    ("sh-printf", "a %s\\n%d", "{2}{1}{0}", "%2$d\\n%1$s"), ("lisp", "a ~A ~D", "{1} {0}", ""),
    ("boost", "a %s %|5d|", "{1} {0}", "%|2$5d| %1$s"), ("boost", "a %1% %2%", "{1} {0}", "%2% %1%"),
    ("go", "a %s %6.2f", "{1} {0}", "%6.2[2]f %[1]s"), ("go", "a %[2]s %[1]d", "{1} {0}", "%[1]d %[2]s"),
    ("go", "a %[2]s %d", "{1} {0}", "")])
def test_directives_in_another_order_are_numbered_or_the_message_is_left(flag, source, translation, result):
    document = DividedDocument(PoDocument(catalogue(flag, source)))
    places = []
    rendered = document.join([translation], "de", report=lambda place, fault: places.append(place))
    assert polib.pofile(rendered.decode())[0].msgstr == result
    assert places == ([] if result else ["line 6"])
    assert msgfmt_accepts(rendered)


@pytest.mark.parametrize(("text", "directives"), [
    ("%B %Y", ["%B %Y"]), ("%d. %m.", ["%d. %m"]), ("%H:%M", ["%H:%M"]), ("%Hh%M", ["%Hh%M"]), ("%A", ["%A"]),
    ("%-d %b", ["%-d %b"]), ("%d de %B de %Y", ["%d", "%B", "%Y"]), ("%d. %b, %H:%M Uhr", ["%d. %b, %H:%M"]),
    ("%Y-%m-%dT%H:%M:%SZ", ["%Y-%m-%dT%H:%M:%S"]), ("%Y年%m月%d日", ["%Y年%m月%d"]), ("at %H:%M", ["%H:%M"]),
    ("Created on %B %d", ["%B %d"]), ("Week %V", []), ("100%Baum", []), ("5%B or 6%Y", []), ("100% Yes", []),
    ("%s of %d dogs", [])])
def test_directives_of_strftime_are_found_if_they_cannot_be_text(text, directives):
    assert found(text, "strftime") == directives


@pytest.mark.parametrize(("text", "markup"), [
    ("See :ref:`the title <a b>`.", [(":ref:`", "open"), (" <a b>`", "close")]),
    (":py:func:`~a.b` and :math:`a <b>`", [(":py:func:`~a.b`", "value"), (":math:`a <b>`", "value")]),
    ("``a *b* <c>`` and `x`", [("``a *b* <c>``", "value"), ("`x`", "value")]),
    ("``:a:`b```/```c d``` ````e````.", [("``:a:`b```", "value"), ("```c d```", "value"), ("````e````", "value")]),
    ("`the link <http://a.b>`_ `name`_ name_", [("`", "open"), (" <http://a.b>`_", "close"), ("`name`_", "value"),
                                                ("name_", "value")]),
    ("`the link <name_>`__", [("`the link <name_>`__", "value")]),
    ("**bold** *em* 2 * 3 * 4 **kw", [("**", "open"), ("**", "close"), ("*", "open"), ("*", "close")]),
    ("|sub| [1]_ [#a]_ [CIT]_ a|b|c", [("|sub|", "value"), ("[1]_", "alone"), ("[#a]_", "alone"), ("[CIT]_", "alone")]),
    (r"\*args a\ s foo_bar", [(r"\*", "value"), ("\\ ", "alone")]),
    ("_`here it is`", [("_`", "open"), ("`", "close")])])
def test_restructured_text(text, markup):
    assert kinds(text, "rst") == markup


def test_markup_of_restructured_text_is_divided_from_letters():
    assert with_boundaries("日本``a``は:ref:`題 <t>`を**太**字。``b``、", "rst") == (
        "日本\\ ``a``\\ は\\ :ref:`題 <t>`\\ を\\ **太**\\ 字。``b``、")
    assert with_boundaries("``a``는 see ``b``, (``c``).``d`` 「``e``」", "rst") == (
        "``a``\\ 는 see ``b``, (``c``).\\ ``d`` 「``e``」")


def test_markup_of_asciidoc_is_divided_from_letters():
    assert with_boundaries("参见linkgit:git-add[1]和`a`。[[x]]日<<b>>本 \"`c`\" git(1)", "asciidoc") == (
        "参见 linkgit:git-add[1] 和 `a`。[[x]]日<<b>>本 \"`c`\" git(1)")


@pytest.mark.parametrize(("syntax", "text", "markup"), [
    ("template", "{% if a %}Hi {{ b }}{% else %}x{% endif %}", [
        ("{% if a %}", "break"), ("{{ b }}", "value"), ("{% else %}", "break"), ("{% endif %}", "break")]),
    ("template", "{% url 'x' %} {# note #}", [("{% url 'x' %}", "value"), ("{# note #}", "alone")]),
    ("template", "<%= a %> <% if b %> <?php echo 1 ?>", [("<%= a %>", "value"), ("<% if b %>", "break"),
                                                          ("<?php echo 1 ?>", "value")]),
    ("template", "{{> part}} {{#if x}}a{{else}}b{{/if}}", [("{{> part}}", "value"), ("{{#if x}}", "break"),
                                                            ("{{else}}", "break"), ("{{/if}}", "break")]),
    ("template", "{% link %}a{% endlink %} {{#b}}c{{/b}} dog{% if n > 1 %}s{% endif %}", [
        ("{% link %}", "open"), ("{% endlink %}", "close"), ("{{#b}}", "open"), ("{{/b}}", "close"),
        ("{% if n > 1 %}s{% endif %}", "alone")]),
    ("filter", "Images (*.png *.jpg);;All files (*)", [("(*.png *.jpg);;", "break"), ("(*)", "break")]),
    ("filter", "Text (*.txt)|*.txt|All (*.*)|*.*", [("(*.txt)|*.txt|", "break"), ("(*.*)|*.*", "break")]),
    ("filter", "Choose (*.csv) or *.tsv, 2 * 3 (*)", [("(*.csv)", "value"), ("*.tsv", "value"), ("(*)", "break")]),
    ("filter", "Fields with (*) are required", []),
    ("markdown-in-strings", "`a` **b** [c](d) `e' *f* _g_ x[0]", [
        ("`a`", "value"), ("**", "open"), ("**", "close"), ("[", "open"), ("](d)", "close")]),
    ("wiki", "[https://x.org/a b c] [[D]] [[E|f]] '''don't''' ''g'' it''s [h]", [
        ("[https://x.org/a ", "open"), ("]", "close"), ("[[E|", "open"), ("]]", "close"), ("'''", "open"),
        ("'''", "close"), ("''", "open"), ("''", "close")]),
    ("names", "%title, %user.name% by !name. $1 of $20 -n", [
        ("%title", "value"), ("%user.name%", "value"), ("!name", "value"), ("$1", "value"), ("$20", "value"),
        ("-n", "value")]),
    ("wiki", "[{{fullurl:a|b=c}} d] [//x.org] [[E|''f'']]", [
        ("[{{fullurl:a|b=c}} ", "open"), ("]", "close"), ("[//x.org]", "value"), ("[[E|", "open"), ("''", "open"),
        ("''", "close"), ("]]", "close")]),
    ("template", "{{a:{{b}}|c}} d", [("{{a:{{b}}|c}}", "value")]),
    ("man", r"End with \e0 or \en. \(cqt", [(r"\e0", "value"), (r"\en", "value"), (r"\(cq", "value")]),
    ("names", "%sPublic 50%of 50 % $5.00 $1,000 $5k a!b x-n -no - a Stop!", []),
    ("printf", "%#@a@ and %1$#@b@, %arg c", [("%#@a@", "value"), ("%1$#@b@", "value"), ("%arg", "value")]),
    ("template", "{!! $a !!} {$b|c} [% d %] <#if x>e</#if>", [("{!! $a !!}", "value"), ("{$b|c}", "value"),
     ("[% d %]", "value"), ("<#if x>", "open"), ("</#if>", "close")]),
    ("template", "5 % } { 6 #} a", []),
    ("bbcode", "[b]a[/B] [url=http://x]b[/url] [img]c[/img] [*] [x] [note]", [
        ("[b]", "open"), ("[/B]", "close"), ("[url=http://x]", "open"), ("[/url]", "close"), ("[img]c[/img]", "value"),
        ("[*]", "alone")]),
    ("chrome", "$COUNT$ of $1, $$5", [("$COUNT$", "value"), ("$1", "value"), ("$$", "value")]),
    ("vue", "@:a.b @.lower:c {'@'} x@y.org", [("@:a.b", "value"), ("@.lower:c", "value"), ("{'@'}", "value")]),
    ("markdown", "`a` **b** [c](d) ![e](f) {ref}`g` 2 * 3", [
        ("`a`", "value"), ("**", "open"), ("**", "close"), ("[", "open"), ("](d)", "close"), ("![", "open"),
        ("](f)", "close"), ("{ref}`g`", "value")])])
def test_other_syntaxes(syntax, text, markup):
    assert kinds(text, syntax) == markup


def test_several_syntaxes_are_found_together_and_unknown_ones_ignored():
    assert found("%s [b]x[/b] %B", "c", "bbcode", "xyz") == ["%s", "[b]", "[/b]"]
    assert find_markup("%s", ()) == []


@pytest.mark.slow
@pytest.mark.parametrize("unit", [
    "{%", "{#", "{{", "<%", "<?php", "[%", "`", "``a", ":a:`", "*a", "**a ", "_a", "|a", "[a", "a:", "a_", "{",
    "%(", "%|", "~,", "~'a", "[b]", "$A", "@:a.", "'{", "%<", "{!!",
    "''a", "[//a ", "[[a|", "%a.", "!a-", "<#a", "{{!--", "![", "%1$", "_`", "`a <", ":a:`b ", "%-", "{'a", " ", "a "])
def test_hostile_texts_take_linear_time(unit):
    begin = time.perf_counter()
    for name in SYNTAXES:
        find_markup(unit * (100_000 // len(unit)), (name,))
    assert time.perf_counter() - begin < 20
