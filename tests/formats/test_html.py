"""HTML: everything but text is kept byte for byte, inline tags are placed in order, and any input takes linear time."""

import html.parser
import random
import re
import time
from dataclasses import replace

import pytest

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.html import HtmlDocument, _tokens


def translated(source, translate=str.upper, language="en"):
    divided = DividedDocument(HtmlDocument(source.encode()))
    return divided.join(list(map(translate, divided.sentences)), language).decode()


def reordered(sentence):
    return " ".join(reversed(sentence.split()))


def tags(source):
    """Return the tags of HTML in order, and check that they are nested correctly."""
    found, stack = [], []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attributes):
            found.append((tag, attributes))
            if tag not in ("br", "img", "hr"):
                stack.append(tag)

        def handle_endtag(self, tag):
            found.append(f"/{tag}")
            assert stack.pop() == tag

    Parser().feed(source)
    assert not stack
    return found


@pytest.mark.parametrize(("source", "expected"), [
    ("<p>ein Hund</p>", "<p>EIN HUND</p>"),
    ("ein Hund", "EIN HUND"), ("", ""), ("  ", "  "), ("<br/>", "<br/>"),
    ("<p>\n  ein\nHund \n</p>", "<p>\n  EIN HUND \n</p>"),
    ("<b>ein Hund</b>", "<b>EIN HUND</b>"),
    ("ein <b>großer</b> Hund", "EIN <b>GROSSER</b> HUND"),
    ("Erster. Zweiter <i>Satz</i>.<br>Dritter", "ERSTER. ZWEITER <i>SATZ</i>.<br>DRITTER"),
    # Models that know no tab and no no-break space read a space.
    ("a &lt; b &amp; c&nbsp;d\r\n\te", "A &lt; B &amp; C D E"),
    ("&lt;b&gt; ist ein Tag", "&lt;B&gt; IST EIN TAG"),
    ("<!-- a --><p title='b > c' CLASS=d>e</P>", "<!-- a --><p title='b > c' CLASS=d>E</P>"),
    ("<!DOCTYPE html><?xml version='1'?>x", "<!DOCTYPE html><?xml version='1'?>X"),
    ("<img alt='a'> b <img>", "<img alt='a'> B <img>"),
    ("<td>12</td><td>1 &#x2c; 3</td>", "<td>12</td><td>1 &#x2c; 3</td>"),
    ("a < b", "A &lt; B"), ("a <b", "A &lt;B"),
])
def test_text_is_translated_and_markup_is_kept(source, expected):
    assert translated(source) == expected


@pytest.mark.parametrize("kept", [
    "<code>a b</code>", "<pre>a\n b</pre>", "<script>if (a < b) c('</p>')</script>", "<style>p > a { b }</style>",
    "<SCRIPT>a</b></SCRIPT >", "<textarea>a <b></textarea>", '<span translate="no">a b</span>',
    "<p class='x notranslate'>a <b>c</b></p>", "<svg><text>a</text></svg>", "<script>a", "<!-- a <b> c -->",
    '<a href="https://a.b/c"><span class="invisible">https://</span><span>a.b/c</span></a>',
    '<a class="mention">@<span>user</span></a>', '<a href="/tags/x">#<span>tag</span></a>',
])
def test_what_is_not_text_is_kept(kept):
    assert translated(kept) == kept
    assert kept in translated(f"<p>vor {kept} nach</p>")


@pytest.mark.parametrize(("source", "expected"), [
    ("<div translate=no>a <p>b</p><p translate=yes>c <b>d</b></p> e <i translate='yes'>f</i></div> g",
     "<div translate=no>a <p>b</p><p translate=yes>C <b>D</b></p> e <i translate='yes'>F</i></div> G"),
    ("<p>a <b translate=no>b <i translate=yes>c</i></b> d</p>",
     "<p>A <b translate=no>b <i translate=yes>C</i></b> D</p>"),
    ("<div translate=no>a<p translate=yes>b <b translate=no>c <i translate=yes>d</i></b></p>e</div>",
     "<div translate=no>a<p translate=yes>B <b translate=no>c <i translate=yes>D</i></b></p>e</div>"),
    ("<p translate=no>a<b translate=yes>b</b><p translate=yes>c</p></p>",
     "<p translate=no>a<b translate=yes>B</b><p translate=yes>C</p></p>"),
    ("<p translate=yes>a <code translate=yes>b</code></p>", "<p translate=yes>A <code translate=yes>b</code></p>"),
    ("<pre translate=no>a <b translate=yes>b</b></pre>", "<pre translate=no>a <b translate=yes>b</b></pre>"),
])
def test_translate_yes_within_translate_no_is_translated(source, expected):
    assert translated(source) == expected


def test_a_tag_follows_words_that_occur_in_the_translation():
    assert translated("ein <b>Kuhn</b> kommt spät", reordered) == "spät kommt <b>Kuhn</b> ein"
    assert translated("<a href='x'>Anna Kuhn</a> kommt", lambda s: "here is Anna Kuhn") == (
        "here is <a href='x'>Anna Kuhn</a>")


def test_a_tag_is_at_the_same_share_of_the_words_otherwise():
    assert translated("ein <b>roter</b> Hund kommt", lambda s: "one two three four") == "one <b>two</b> three four"
    assert translated("eins <i>zwei</i>", lambda s: "") == "<i></i>"
    assert translated("<i>a</i> <b>b</b> c", lambda s: "one") == "<i></i><b>one</b>"
    assert translated("<b>狗</b>跑", lambda s: "A dog runs") == "<b>A dog</b> runs"
    assert translated("a <b>dog</b> runs", lambda s: "一只狗跑") == "一<b>只狗</b>跑"


def test_sentences_of_a_run_are_split():
    found = []
    translated("<p>Ein <b>Satz. Noch</b> einer.</p><p>Dritter.", lambda sentence: found.append(sentence) or sentence)
    assert found == ["Ein Satz.", "Noch einer.", "Dritter."]


@pytest.mark.parametrize("seed", range(8))
def test_well_formed_html_stays_well_formed_with_the_same_tags(seed):
    draw = random.Random(seed)

    def element(depth):
        kind = draw.choice(["p", "b", "i", "a href='x'", "span", "text", "text", "br", "ul", "code"])
        if kind == "text" or depth > 4:
            words = ["ein", "Hund.", "läuft", "&amp;", "12", "Kuhn"]
            return " ".join(draw.choice(words) for _ in range(draw.randint(1, 6)))
        if kind == "br":
            return "<br>"
        inner = "".join(draw.choice(["", " "]) + element(depth + 1) for _ in range(draw.randint(0, 4)))
        return f"<{kind}>{inner}</{kind.split()[0]}>"

    source = "".join(element(0) for _ in range(3))
    for translate in (str.upper, reordered, lambda sentence: "x", lambda sentence: sentence + " < & more words"):
        assert sorted(map(str, tags(translated(source, translate)))) == sorted(map(str, tags(source)))


@pytest.mark.parametrize("seed", range(8))
def test_any_input_comes_back_unchanged_from_an_identical_translation_but_for_entities(seed):
    draw = random.Random(seed)
    pieces = ["<", ">", "</", "<b", "<b>", "</b>", "'", '"', "=", "<!--", "-->", "&", "&lt;", "a", " ", "\n", "<p>",
              "/>", "<script>", "</script>", "<![CDATA[", "\0", "é", "<code>", "</code>"]
    source = "".join(draw.choice(pieces) for _ in range(60))
    assert "".join(token.raw for token in _tokens(source)) == source
    kept = translated(source, lambda sentence: sentence)
    assert re.sub(r"\s", " ", html.unescape(kept)) == re.sub(r"\s", " ", html.unescape(source))


@pytest.mark.parametrize("piece", ["<", "<a ", '<a b="', "<!--", "<![CDATA[", "</", "<b>", "</b>", "<b>a ",
                                   "a<i>b</i> ", "<script>", "<code>", "<a>@", "&", "a. ", "<b></i>", '"<a\'', "<a>",
                                   "<span>#x", "<a b='", "<a b=", "<?", "<%", "<a ='' ", "<a b='\"", "<a b='x' ",
                                   "<p translate=no>", "<p translate=no><p translate=yes>a",
                                   "{{", "{%", "{#", "{{!--", "{!!", "<?php ", "{{#", "a{%%}b", "{%comment%}",
                                   "@if((", "@if(a){ } ", "@endif @if (", "<%= do |%>", "<ruby><rt>a", "<p a='{{",
                                   "<b translate=no><b translate=yes>a</b></b>", "<b translate=yes>a</b>"])
def test_any_input_takes_linear_time(piece):
    def seconds(length):
        began = time.process_time()
        translated(piece * (length // len(piece)), lambda sentence: sentence)
        return time.process_time() - began

    # Four times the length: linear time is 4 times as long, quadratic time 16 times. Other processes add noise.
    assert any(seconds(16_000) < 8 * seconds(4_000) + 0.05 for _ in range(3))


@pytest.mark.parametrize("tag", [
    '<button x-on:click="if (count < 3) count++" class="btn">', '<div data-content="<b>Free</b> shipping">',
    "<p title='Prices <10 EUR'>", '<a href="<%= url %>">', '<font size="2"">', "<p title=Bob's>", "<p a = 'b'c=d>",
    '<?php echo $x ? "a>b" : 1; ?>', "<% if a > b %>", "<!-- a > b -->"])
def test_tags_and_code_are_kept_whatever_their_attributes(tag):
    assert translated(f"{tag}add to cart") == f"{tag}ADD TO CART"


def test_inline_code_and_names_are_tags_inside_of_one_sentence():
    source = ("<p>use <code>ls -l</code> or <a href='x'>https://a.b</a> or <span translate=no>Acme</span> now</p>"
              "<pre>make</pre><td><kbd>Ctrl</kbd></td>")
    assert [block.text for block in HtmlDocument(source.encode()).blocks] == ["use  or  or  now"]


@pytest.mark.parametrize(("source", "sentences", "expected"), [
    # Elements that HTML does not define are inline.
    ('Two <x id="4"></x> young dogs', ["Two young dogs"], 'TWO <x id="4"></x> YOUNG DOGS'),
    ("A <foo>red</foo> dog <x-y z>runs</x-y>.", ["A red dog runs."], "A <foo>RED</foo> DOG <x-y z>RUNS</x-y>."),
    ("One <x id=1 /> two <o:p></o:p> three", ["One two three"], "ONE <x id=1 /> TWO <o:p></o:p> THREE"),
    ("A <nobr>red</nobr> <blink>dog</blink> <slot>runs</slot>", ["A red dog runs"],
     "A <nobr>RED</nobr> <blink>DOG</blink> <slot>RUNS</slot>"),
    ("A <picture><source srcset=a><img src=b></picture> dog", ["A dog"],
     "A <picture><source srcset=a><img src=b></picture> DOG"),
    # Elements of blocks, tables, forms and media are not.
    ("<search>One</search><dialog>two</dialog><summary>three</summary>four", ["One", "two", "three", "four"],
     "<search>ONE</search><dialog>TWO</dialog><summary>THREE</summary>FOUR"),
    ("<select><optgroup label=x><option>One<option>two</select> <button>three</button>four",
     ["One", "two", "three", "four"],
     "<select><optgroup label=x><option>ONE<option>TWO</select> <button>THREE</button>FOUR"),
    ("<template><p>One</p></template><noscript>two</noscript>", ["One", "two"],
     "<template><p>ONE</p></template><noscript>TWO</noscript>"),
    # Ruby
    ("<ruby>漢<rp>(</rp><rt>kan</rt><rp>)</rp>字<rp>(</rp><rt>ji</rt><rp>)</rp></ruby>です。", ["漢字です。"],
     "<ruby>漢<rp>(</rp><rt>kan</rt><rp>)</rp>字<rp>(</rp><rt>ji</rt><rp>)</rp></ruby>です。"),
    ("a <ruby>漢<rt>kan<rt>ji</ruby> z", ["a 漢 z"], "A <ruby>漢<rt>kan<rt>ji</ruby> Z"),
    ("a <ruby><rb>漢<rt>kan</ruby> z <p>one</p>", ["a 漢 z", "one"], "A <ruby><rb>漢<rt>kan</ruby> Z <p>ONE</p>"),
    ("a <rt>b <p>one</p> <rt>c", ["a b", "one", "c"], "A <rt>B <p>ONE</p> <rt>C"),
    # Places to divide words
    ("Do<wbr>nau dampf&shy;schiff <bdo dir=rtl>One</bdo>", ["Donau dampfschiff One"],
     "<wbr>DONAU DAMPFSCHIFF <bdo dir=rtl>ONE</bdo>"),
])
def test_unknown_elements_are_inline_and_ruby_text_is_no_part_of_a_sentence(source, sentences, expected):
    assert DividedDocument(HtmlDocument(source.encode())).sentences == sentences
    assert translated(source) == expected


@pytest.mark.parametrize(("source", "sentences"), [
    # Two links, or two unknown elements
    ("<a>Two dogs</a><a>A red car</a>", ["Two dogs", "A red car"]),
    ("<a>two</a><a>one</a><i>x</i>", ["two", "one", "x"]),
    ("<b><a>Two dogs</a><a>a car</a></b>", ["Two dogs", "a car"]), ("<x-a>two</x-a><x-b>one</x-b>", ["two", "one"]),
    # The end of a sentence, and an upper-case letter
    ("<span>He is here.</span><span>A man runs.</span>", ["He is here.", "A man runs."]),
    ("<b>Really?</b>A man runs.", ["Really?", "A man runs."]), ("Here it is!<i>A man</i>", ["Here it is!", "A man"]),
    ("<span>Home</span><span>News</span>", ["Home", "News"]), ("<em>到了。</em><em>一个人</em>", ["到了。", "一个人"]),
    # Pictures
    ("Two dogs<img src=a>A red car", ["Two dogs", "A red car"]), ("one<svg><path/></svg>two", ["one", "two"]),
    ("one<PICTURE/>two", ["one", "two"]), ('one<i class="material-icons">add</i>two', ["one", "two"]),
    ("Click <img src=a> here", ["Click here"]),
    # Parts of a word
    ("<span>T</span>wo dogs", ["Two dogs"]), ("<span>Tw</span><span>o dogs</span>", ["Two dogs"]),
    ("Mc<b>D</b>onald eats", ["McDonald eats"]), ("<b>US</b><i>A</i>", ["USA"]),
    ("H<sub>2</sub>O boils", ["H2O boils"]), ("a<wbr>b", ["ab"]), ("<a>dog</a>s", ["dogs"]),
    ("<b>3.</b><i>5 km</i>", ["3.5 km"]), ("<i>e.</i><i>g.</i>", ["e.g."])])
def test_neighbours_are_texts_of_their_own_unless_they_may_be_parts_of_a_word(source, sentences):
    document = DividedDocument(HtmlDocument(f"<p>{source}</p>".encode()))
    assert document.sentences == sentences
    assert document.join(document.sentences, "en").decode() == f"<p>{source}</p>"


@pytest.mark.parametrize("source", [
    "<m:math><m:mi>x</m:mi></m:math>", "<svg:style>a {b}</svg:style>", "<svg:svg><svg:text>A</svg:text></svg:svg>",
    "<M:MATH>x</M:MATH>", "<h:script>a</h:script>"])
def test_elements_with_a_prefix_are_those_without_it(source):
    assert translated(f"<p>{source} is red</p>") == f"<p>{source} IS RED</p>"


@pytest.mark.parametrize(("source", "sentences"), [
    # Jinja, Django, Twig, Liquid
    ('{% extends "base" %}\n{% block a %}\nOne.\n{% if x %}\nTwo.\n{% elif y < 3 %}Three{% else %}\nFour.\n{% endif %}'
     "\n{% endblock %}", ["One.", "Two.", "Three", "Four."]),
    ("{%- for a in b -%}One{%- endfor -%} two", ["One", "two"]),
    ("{% mytag %}One{% endmytag %} two", ["One", "two"]),
    ('{% include "a" %}\nOne there.\n  {% csrf_token %}\nTwo there.', ["One there.", "Two there."]),
    ('<p>One {% url "a>b" %} two</p>', ["One two"]), ("<p>{# One <b> #}Two {# three #} four</p>", ["Two four"]),
    ("{% comment %}One <b>{% endcomment %}Two{% highlight x %}three{% endhighlight %}", ["Two"]),
    ("{% trans with a='<a>' b='</a>' %}One{% endtrans %} {% translate '<b>Two</b>' %} three", ["One", "three"]),
    ("<p>You have dog{% if n != 1 %}s{% endif %}.</p>", ["You have dog."]),
    ("<p>One {{ a > b ? '<b>' : \"c\" }} two & three</p>", ["One two & three"]),
    # In and around tags
    ('<a href="{% url "x" %}" {% if a > b %}class="c"{% endif %}>One <b>two</b></a>', ["One two"]),
    ("<p {% if a < b %}hidden{% endif %} title='{{ a['b'] > 1 }}'>One</p>", ["One"]),
    ('<input {{#if x}}checked{{/if}} value="{{ y }}">One', ["One"]),
    ('<{{ tag }} class="x">One</{{ tag }}>', ["One"]), ('<p class=<%= "a>b" %>>One</p>', ["One"]),
    # Handlebars, Go, Vue, Angular
    ("{{#if a}}\n<h1>One</h1>\nTwo\n{{else}}\nThree{{/if}}{{^b}}four{{/b}}", ["One", "Two", "Three", "four"]),
    ("<p>A dog{{#if b}}s{{else}}es{{/if}}.</p>", ["A dog."]),
    ("{{> header}}\nOne{{! two }} three{{!-- four }} --}} five", ["One three five"]),
    ("{{ range .A }}\n<li>One</li>\n{{- else -}}two{{ end }}{{{ three }}} {{ if .B }}four{{ end }}",
     ["One", "two", "four"]),
    ('<div *ngIf="a < b" (click)="x > 3">One <i v-if="x > 2" :a="{b: 1}">two</i></div>', ["One two"]),
    ("@if (a.b(1)) {\n<p>One</p>\n} @else if (c) {\ntwo\n} @else {three}", ["One", "two", "three"]),
    # ERB, EJS, JSP
    ("<% if a > b %>\n<p>One</p>\n<% else %>Two<% end -%>three", ["One", "Two", "three"]),
    ("<p>One <%= a > b %>, two <%# three %> <%- include('x') %></p>", ["One , two"]),
    ("<%= form do |f| %>One<% end %><%@ page x %>two<%-- three --%> four", ["One", "two four"]),
    # PHP, Blade
    ("<?php if ($a > 1): ?>One<?php else: ?>two<?php endif; ?><?php foreach ($a as $b) { ?>three<?php } ?>four",
     ["One", "two", "three", "four"]),
    ('<p title="<?php echo "a>b" ?>">One <?= $a > 1 ?> two <?php the_date(); ?>.</p>', ["One two ."]),
    ("<p>One</p>\n<?php echo '<p>Two</p>';\n", ["One"]), ("<?php include 'a'; ?>\nOne", ["One"]),
    ("@extends('a')\n@foreach($a as $b(1))\n One {!! $b > 1 !!}\n@endforeach\n@csrf two", ["One", "two"]),
])
def test_template_code_is_kept_and_separates_texts_that_it_chooses_from(source, sentences):
    assert DividedDocument(HtmlDocument(source.encode())).sentences == sentences
    expected, end = "", 0
    for word in re.findall(r"\w+", " ".join(sentences)):
        begin = re.compile(rf"\b{word}\b").search(source, end).start()
        expected, end = expected + source[end:begin] + word.upper(), begin + len(word)
    assert translated(source) == (expected + source[end:]).replace(" & ", " &amp; ")


@pytest.mark.parametrize(("source", "expected"), [
    ("<script>var a = '{{';</script><p>one</p><style>p{a{}}</style>", "ONE"), ("<!-- {{ --> one }}", "ONE"),
    ("<code>{%</code> one <code>%}</code>", "ONE"), ("a {{ one", "ONE"), ("a <% one", "ONE"),
    ("<code>{% comment %}</code> one <code>{% endcomment %}</code>", "ONE"), ("write to @else or @if, one }", "ONE"),
])
def test_what_only_begins_like_template_code_hides_no_text(source, expected):
    assert expected in translated(source)


@pytest.mark.parametrize(("page", "language", "expected"), [
    ("<html><p>x</p>", "ar", '<html dir="rtl"><p>X</p>'),
    ("<HTML lang=en>x</HTML>", "he", '<HTML dir="rtl" lang=he>X</HTML>'),
    ('<html lang="en" dir="ltr"><body dir=ltr>x', "fa", '<html lang="fa" dir="rtl"><body dir=rtl>X'),
    ('<html dir="rtl"><p>x</p>', "de", '<html dir="ltr"><p>X</p>'), ('<html dir="auto">x', "de", '<html dir="auto">X'),
    ('<p dir="ltr">x</p>', "ur", '<p dir="ltr">X</p>'),
    ('<p lang="en" dir="ltr">x</p>', "ur", '<p lang="ur" dir="rtl">X</p>'),
    ("<html>x", "az-Arab", '<html dir="rtl">X'), ("<html>x", "uz-Latn", "<html>X"), ("<html>x", "ku", "<html>X")])
def test_a_page_has_the_direction_of_its_language(page, language, expected):
    divided = DividedDocument(HtmlDocument(page.encode(), "en", language))
    assert divided.join(divided.sentences, language).decode() == page
    assert divided.join(list(map(str.upper, divided.sentences)), language).decode() == expected


@pytest.mark.parametrize("root, expected", [
    ('<html lang="de">', '<html lang="fr">'), ("<HTML dir=ltr LANG='de-DE' >", "<HTML dir=ltr LANG='fr' >"),
    ('<html xml:lang="de" lang="de" data-lang="de">', '<html xml:lang="fr" lang="fr" data-lang="de">'),
    ("<html lang=de>", "<html lang=fr>"), ('<html lang="{{ code }}">', '<html lang="{{ code }}">'),
    ("<html>", "<html>")])
def test_the_root_element_of_a_translated_page_has_the_target_language(root, expected):
    page = f'<!DOCTYPE html>\n{root}<body lang="de"><p>Ein Hund.</p><p hreflang="de">7</p></body></html>'
    document = HtmlDocument(page.encode())
    assert document.render(document.blocks, "fr").decode() == page
    blocks = [replace(block, text="Un chien.") for block in document.blocks]
    assert document.render(blocks, "fr").decode() == page.replace(root, expected).replace(
        "Ein Hund.", "Un chien.").replace('<body lang="de">', '<body lang="fr">')


@pytest.mark.parametrize(("source", "sentences", "expected"), [
    ('dogs<sup><a href="#c1">[1]</a></sup> run', ["dogs run"], 'DOGS<sup><a href="#c1">[1]</a></sup> RUN'),
    ('dogs<a epub:type="noteref" href="n.xhtml#n1">1</a> run', ["dogs run"],
     'DOGS<a epub:type="noteref" href="n.xhtml#n1">1</a> RUN'),
    ('dogs <a role="doc-noteref" href="#n">2</a> run', ["dogs run"],
     'DOGS <a role="doc-noteref" href="#n">2</a> RUN'),
    ('dogs<a href="#fn1">*</a> run', ["dogs run"], 'DOGS<a href="#fn1">*</a> RUN'),
    ('dogs<a href="#fn1"><sup>iv</sup></a>', ["dogs"], 'DOGS<a href="#fn1"><sup>iv</sup></a>'),
    ('dogs[<a href="notes.html#2">2</a>] run', ["dogs run"], 'DOGS[<a href="notes.html#2">2</a>] RUN'),
    ("Two dogs.<sup>3</sup> A car", ["Two dogs.", "A car"], "TWO DOGS.<sup>3</sup> A CAR"),
    ("dogs<sup>1</sup><sup>,</sup><sup>2</sup>", ["dogs"], "DOGS<sup>1</sup><sup>,</sup><sup>2</sup>"),
    ('dogs<sup class="reference"><a href="#n1">[<span>note 1</span>]</a></sup> run', ["dogs run"],
     'DOGS<sup class="reference"><a href="#n1">[<span>note 1</span>]</a></sup> RUN'),
    ("<td>dogs<sup>a</sup></td>", ["dogs"], "<td>DOGS<sup>a</sup></td>"),
    ("dogs<sup>a, b</sup>", ["dogs"], "DOGS<sup>a, b</sup>"),
    ('dogs <span class="x footnote-ref">1</span>', ["dogs"], 'DOGS <span class="x footnote-ref">1</span>'),
    ('a dog <span epub:type="pagebreak" id="p7">7</span>runs', ["a dog runs"],
     'A DOG <span epub:type="pagebreak" id="p7">7</span>RUNS'),
    ('<p id="n1"><a href="#r1">1.</a> a dog <a href="#r1" role="doc-backlink">\u21a9</a></p>', ["a dog"],
     '<p id="n1"><a href="#r1">1.</a> A DOG <a href="#r1" role="doc-backlink">\u21a9</a></p>'),
    ("5 m<sup>2</sup> of 10<sup>6</sup>", ["5 m2 of 106"], "5 M<sup>2</sup> OF 10<sup>6</sup>"),
    ("the XX<sup>e</sup> dog, the 3<sup>rd</sup>", ["the XXe dog, the 3rd"],
     "THE XX<sup>E</sup> DOG, THE 3<sup>RD</sup>"),
    ('section <a href="#s2">2</a> of <a href="#dogs">dogs</a>', ["section 2 of dogs"],
     'SECTION <a href="#s2">2</a> OF <a href="#dogs">DOGS</a>'),
])
def test_a_reference_to_a_note_is_kept_and_no_part_of_a_word(source, sentences, expected):
    assert DividedDocument(HtmlDocument(source.encode())).sentences == sentences
    assert translated(source) == expected


@pytest.mark.parametrize(("icon", "is_icon"), [
    ('<i class="material-icons">arrow_back</i>', True), ("<mat-icon>home</mat-icon>", True),
    ('<span class="material-symbols-outlined">home</span>', True), ("<v-icon>mdi-home</v-icon>", True),
    ('<i aria-hidden="true" class="btn__icon material-icons-round md-18">face</i>', True),
    ('<span class="icon">\u2605</span>', True), ('<i class="fa">&#xf015;</i>', True),
    ('<span class="icon">Two dogs</span>', False),
    ('<a class="icon">dogs</a>', False), ('<span class="iconic">dogs</span>', False),
])
def test_the_name_of_a_glyph_is_kept(icon, is_icon):
    assert DividedDocument(HtmlDocument(f"{icon} run".encode())).sentences[0].startswith("run") == is_icon
    assert translated(f"<p>{icon} run</p>").startswith(f"<p>{icon} RUN") == is_icon


@pytest.mark.parametrize(("source", "expected"), [
    ("a &#123;&#123; name &#125;&#125; b", "A &#123;&#123; name &#125;&#125; B"),
    ("a &lbrace;x&rbrace; b", "A &lbrace;X&rbrace; B"),
    ("a {{ x }} &#123;&#123; y &#125;&#125; b", "A {{ x }} &#123;&#123; y &#125;&#125; B"),
    ("b&#64;if &dollar;5 &copy; c&semi; &lt;&#x26;", "B&#64;IF &dollar;5 &copy; C&semi; &lt;&#x26;"),
    ("&#97; b &mdash; c", "A B &mdash; C"), ("a { b } c", "A { B } C"),
])
def test_a_character_that_the_source_writes_as_a_reference_is_written_so_again(source, expected):
    assert translated(source) == expected


@pytest.mark.parametrize(("source", "expected"), [
    ('<p lang="de">Zwei Hunde</p><p>two dogs</p>', '<p lang="de">Zwei Hunde</p><p>TWO DOGS</p>'),
    ('<p lang="en">two dogs</p>', '<p lang="fr">TWO DOGS</p>'),
    ('<p xml:lang="en-GB">two</p>', '<p xml:lang="fr">TWO</p>'),
    ('<p>so <i lang="la">ad hoc</i> it is</p>', '<p>SO <i lang="la">ad hoc</i> IT IS</p>'),
    ('<p>a <span class=x LANG=en>red</span> car</p>', '<p>A <span class=x LANG=fr>RED</span> CAR</p>'),
    ('<div lang="de">Hunde <p lang="en">dogs</p> Hunde</div><p>dogs</p>',
     '<div lang="de">Hunde <p lang="fr">DOGS</p> Hunde</div><p>DOGS</p>'),
    ('<div lang="de"><p lang="es">perros</p>Hunde</div>', '<div lang="de"><p lang="es">perros</p>Hunde</div>'),
    ('<div translate="no" lang="en">dogs<p lang="en">dogs</p></div>',
     '<div translate="no" lang="en">dogs<p lang="en">dogs</p></div>'),
    ('<html lang="de"><body lang="de"><p>dogs</p></body></html>',
     '<html lang="fr"><body lang="fr"><p>DOGS</p></body></html>'),
    ('<ul><li><a lang="de" hreflang="de">Deutsch</a></li><li><a hreflang="en">dogs</a></li></ul>',
     '<ul><li><a lang="de" hreflang="de">Deutsch</a></li><li><a hreflang="en">DOGS</a></li></ul>'),
    ('<pre lang="en">dogs</pre><p lang="und">dogs</p>', '<pre lang="en">dogs</pre><p lang="und">DOGS</p>'),
    ('<p>a <b its:translate="no">dog</b> and <b class="skiptranslate">one</b> <b class="x no-translate">two</b></p>',
     '<p>A <b its:translate="no">dog</b> AND <b class="skiptranslate">one</b> <b class="x no-translate">two</b></p>')])
def test_parts_in_another_language_stay_and_translated_parts_name_the_target_language(source, expected):
    divided = DividedDocument(HtmlDocument(source.encode(), "en", "fr"))
    assert divided.join(divided.sentences, "fr").decode() == source
    assert divided.join(list(map(str.upper, divided.sentences)), "fr").decode() == expected
