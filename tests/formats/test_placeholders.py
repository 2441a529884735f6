"""Placeholders are found by pattern: variables of message formats, addresses, paths, emoji."""

import pytest
from hypothesis import strategies as st
from property_checks import few_and_many

from seq2seq.formats.placeholders import Placeholders


@pytest.mark.parametrize(("text", "expected"), [
    ("Hello {name}, you have {0} of {count:,} files in {}", ["{name}", "{0}", "{count:,}", "{}"]),
    ("{user.first_name!r:>10} {items[0]} { spaced }", ["{user.first_name!r:>10}", "{items[0]}", "{ spaced }"]),
    ("%s of %d, %(count)d %1$s %2$-8.3f %% %@ %ld %5.1f%%", [
        "%s", "%d", "%(count)d", "%1$s", "%2$-8.3f", "%%", "%@", "%ld", "%5.1f", "%%"]),
    ("{{ user }} {{{raw}}} ${x} #{y} %{z} @{w} $t(key)", [
        "{{ user }}", "{{{raw}}}", "${x}", "#{y}", "%{z}", "@{w}", "$t(key)"]),
    ("{n, plural, one {# file} other {# files in {place}}} left", [
        "{n, plural, one {# file} other {# files in {place}}}"]),
    ("{when, date, short} {n, number}", ["{when, date, short}", "{n, number}"]),
    ("%1 of %L2, %n files, %APPDATA%", ["%1", "%L2", "%n", "%APPDATA%"]),
    ("Set by %w, %b: 50%w, %wide", ["%w", "%b"]),
    ("Hi $name, :count items, __title__, [[Main page]]", ["$name", ":count", "__title__", "[[Main page]]"]),
    ("Tom &amp; Jerry &#39;s <b>big</b> <br/> house", ["&amp;", "&#39;", "<b>", "</b>", "<br/>"]),
    ("<0>Click</0> here<1/> if 2 < 3 > 1", ["<0>", "</0>", "<1/>"]),
    ("&apt-author.team; &synopsis-pkg; &#8230; R&D; a", ["&apt-author.team;", "&synopsis-pkg;", "&#8230;"]),
    ("<_:link-1/> is <!ENTITY a.b \"red\">", ["<_:link-1/>", "<!ENTITY a.b "]),
    ("See https://example.org/a_(b)?q=1&r=2#x, or (http://x.org).", ["https://example.org/a_(b)?q=1&r=2#x", "http://x.org"]),
    ("Write to first.last@mail.example.org. www.example.org!", ["first.last@mail.example.org", "www.example.org"]),
    (r"Open /etc/hosts, ~/notes.txt. or C:\Users\x\a.txt or ../lib", [
        "/etc/hosts", "~/notes.txt", r"C:\Users\x\a.txt", "../lib"]),
    ("Great 👍🏽! 👩‍👩‍👧 🇩🇪 ❤️ 1️⃣", ["👍🏽", "👩‍👩‍👧", "🇩🇪", "❤️", "1️⃣"]),
    (r"$HOME/thunar, ${HOME}/.x/y $(pwd)/x (%APPDATA%\x\y). $env:HOME\x ~user/x {dir}/a %(dir)s/a /a/$ARCH/b $HOME.", [
        "$HOME/thunar", "${HOME}/.x/y", "$(pwd)/x", r"%APPDATA%\x\y", r"$env:HOME\x", "~user/x", "{dir}/a", "%(dir)s/a",
        "/a/$ARCH/b", "$HOME"]),
    ("'C:\\Program Files\\x y.txt' or \"/home/my dir/x\", C:/x/y and \\\\srv\\share\\x.", [
        r"C:\Program Files\x y.txt", "/home/my dir/x", "C:/x/y", r"\\srv\share\x"]),
    (r'"/etc/hosts is broken" one\nTwo \u00e4 trash:///x ssh://a@x.org:22/y', [
        "/etc/hosts", r"\n", r"\u00e4", "trash:///x", "ssh://a@x.org:22/y"]),
    ("###USER_NAME###, ##name## #URL1# %%code%% @@url@@ $count$ |NAME| *|FNAME|* ~NAME~ $a b$", [
        "###USER_NAME###", "##name##", "#URL1#", "%%code%%", "@@url@@", "$count$", "|NAME|", "*|FNAME|*", "~NAME~",
        "$a"]),
    ("[_1] of [quant,_2,file,files], [user:name] [user_name] {!User.Name} $[x]", [
        "[_1]", "[quant,_2,file,files]", "[user:name]", "[user_name]", "{!User.Name}", "$[x]"]),
    ("SITE_NAME, user_list.py. user_name2 Benutzer_innen x_y _a_ {#field} %1$simage %2$d", [
        "SITE_NAME", "user_list.py", "user_name2", "{#field}", "%1$s", "%2$d"]),
    ("Use --force, (--dry-run=client) or --out=<dir>. a--b -- c ---d", ["--force", "--dry-run=client", "--out=<dir>"]),
    ("Thanks @user_1 for #machine_translation2", ["@user_1", "#machine_translation2"]),
])
def test_placeholders_are_found(text, expected):
    assert [text[begin:end] for begin, end in Placeholders().spans(text)] == expected


@pytest.mark.parametrize("text", [
    "50 % of all, 100% d'accord, 100%ige Sicherheit", "and/or, 1/2, km/h, he/she", "it costs $5 or $1,000",
    "Note: see 12:30, Benutzer:innen", "{ a sentence in braces, really }", "a < b and b > c", "R&D, A & B; C",
    "a # b, C#, no. #1", "e.g. this. Or that", "[laughs] (sighs)", 
    r"\textbf[a", "5 $/month, s/he", "5 + 3 = 8, x_y __ z", "don’t — “quote”"])
def test_ordinary_text_has_no_placeholders(text):
    assert Placeholders().spans(text) == []


def test_a_pattern_of_ones_own_comes_first():
    assert Placeholders([r"<\d+>", r"[A-Z]{3}-\d+"]).counts("<1> ABC-12 {x} {x}") == {
        "<1>": 1, "ABC-12": 1, "{x}": 2}


@few_and_many(10, 1000, st.text(alphabet="{}%$:&<>@#/\\._-[]() aA0,;\n👍", max_size=80))
def test_spans_are_in_order_and_do_not_overlap(text):
    spans = Placeholders([r"a+"]).spans(text)
    assert all(begin < end for begin, end in spans)
    assert all(first[1] <= second[0] for first, second in zip(spans, spans[1:], strict=False))


@pytest.mark.parametrize("unit", ["{", "{ ", "%0", "{{", "<a", "/a", "a.", "&a", "{a,", "{n, plural, ", "%(", "a@",
                                  "http://", "C:\\a\\", "#a", "🙂", "{a[", "$t(",
                                  "$a/", "$a\\", "'/a ", '"C:\\a b', "/{a", "\\\\a\\", "a://", "<a></"])
def test_the_time_is_linear(unit):
    Placeholders().spans(unit * (60_000 // len(unit)))
