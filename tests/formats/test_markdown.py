"""Markdown: text is translated; code, links, tables, prefixes and front matter keep their bytes."""

from dataclasses import replace

import pytest
from document_translators import translated
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from property_checks import few_and_many

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.data_values import is_data
from seq2seq.formats.markdown import MarkdownDocument


def upper(source):
    return translated(MarkdownDocument(source.encode()), lambda text: text if is_data(text) else text.upper()).decode()


def structure(source):
    """Return the types of the tokens of a document, those of inline tokens included, but for breaks of lines."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(source)
    return [(token.type, [child.type for child in token.children or [] if child.type not in ("text", "softbreak")])
            for token in tokens]


@pytest.mark.parametrize(("source", "expected"), [
    ("ein Hund", "EIN HUND"), ("# Ein *Hund* ##\n", "# EIN *HUND* ##\n"), ("Ein\nHund\n===\n", "EIN HUND\n===\n"),
    ("> ein\n> **zwei**\n> drei\n", "> EIN **ZWEI** DREI\n"), ("> a  \n> b\n", "> A  \n> B\n"),
    ("- a\\\n  b\n", "- A\\\n  B\n"), ("1. a\n   - b\n", "1. A\n   - B\n"), ("- [ ] a\n- [x] b", "- [ ] A\n- [x] B"),
    ("a [b](c 'd') e\r\n", "A [B](c 'D') E\r\n"), ("[a][b] c\n\n[b]: d\n", "[A][b] C\n\n[b]: d\n"),
    ("![a](b) c `d e` f", "![A](b) C `d e` F"), ("<http://a.b> c", "<http://a.b> C"),
    ("a <b class=x>c</b><br/> d", "A <b class=x>C</b><br/> D"), ("a ~~b~~ __c__ _d_", "A ~~B~~ __C__ _D_"),
    ("|a|b|\n|-|-|\n|c \\| d| **e** |\n", "|A|B|\n|-|-|\n|C \\| D| **E** |\n"),
    ("a | b\n-|-\nb | a\n", "A | B\n-|-\nB | A\n"),
    ("> a | b\n> -|-\n> b |\n", "> A | B\n> -|-\n> B |\n"),
    ("a[^1] b\n\n[^1]: Ein Satz.\n", "A[^1] B\n\n[^1]: EIN SATZ.\n"),
    ("[^1]: Ein Hund.\n[^long]: Eine Katze.\n", "[^1]: EIN HUND.\n[^long]: EINE KATZE.\n"),
    ("> [^1]: Ein Hund.\n> [^2]: Eine Katze.\n", "> [^1]: EIN HUND.\n> [^2]: EINE KATZE.\n"),
    ("ein $$\\frac{a}{b}$$ Text", "EIN $$\\frac{a}{b}$$ TEXT"),
    ("> [!NOTE]\n> a\n> b\n", "> [!NOTE]\n> A B\n"), ("---\na: b\n---\nc\n", "---\na: b\n---\nC\n"),
    ("+++\na\n+++\nb", "+++\na\n+++\nB"),
    ("a \\* b &amp; c", "A \\* B &amp; C"), ("ein &lt;b> c", "EIN &lt;B> C"),
    ("a_b or snake_case", "A_B OR SNAKE_CASE"),
    ("\ufeff# a", "\ufeff# A"), ("# 1 #", "# 1 #"), ("# #", "# #"), ("a\n\n\tcode\n", "A\n\n\tcode\n"),
])
def test_text_is_translated_and_markup_is_kept(source, expected):
    document = MarkdownDocument(source.encode())
    assert document.render(document.blocks, "en") == source.encode()
    assert upper(source) == expected


@pytest.mark.parametrize(("source", "expected"), [
    ("[^1]: a a\n\n    b  \n    c\n\n    - d\n\n    e\n\nf\n\n    code\n",
     "[^1]: A A\n\n    B  \n    C\n\n    - D\n\n    E\n\nF\n\n    code\n"),
    ("[^1]:\n\n\ta\n\n        code\n\n    ```\n    code\n    ```\n",
     "[^1]:\n\n\tA\n\n        code\n\n    ```\n    code\n    ```\n"),
    ("a\n[^1]: b\n    c\n\n    d\ne\n", "A\n[^1]: B C\n\n    D E\n"),
    ("> [^1]: a a\n>\n>     b\n\n    code\n", "> [^1]: A A\n>\n>     B\n\n    code\n"),
    ("- [^1]: a a\n\n      b\n\n          code\n", "- [^1]: A A\n\n      B\n\n          code\n"),
    ("- [^1]: a a\n\n-     code\n", "- [^1]: A A\n\n-     code\n"),
    ("a\n\n [^1]: https://a.b\n\n    c\n", "A\n\n [^1]: https://a.b\n\n    C\n"),
    ('!!! note "Title"\n    a\n\n    b\n', '!!! note "TITLE"\n    A\n\n    B\n'),
    ("Term\n: a\n\n    b\n", "TERM\n: A\n\n    B\n"),
    ("a [^1]\n\n    code\n", "A [^1]\n\n    code\n"), ("!!!\n\n    code\n", "!!!\n\n    code\n"),
])
def test_further_paragraphs_of_footnotes_and_other_extensions_are_no_code(source, expected):
    assert upper(source) == expected


def test_deeply_nested_footnotes_are_no_deep_recursion():
    source = "".join(f"{'    ' * depth}[^1]: a a\n\n" for depth in range(300))
    assert upper(source).startswith("[^1]: A A\n\n    [^1]: A A\n\n        [^1]: A A\n")


@pytest.mark.parametrize("kept", ["```py\ncode\n```\n", "    code\n", "<div>\ntext\n</div>\n", "[a]: b '1'\n",
                                  "---\n", "", "\n\n",
                                  "<!-- a -->\n", "***\n", "`a`\n", "![1](b)\n", "12 % 3\n", "\r\n\r\n"])
def test_blocks_that_are_no_text_are_kept(kept):
    assert MarkdownDocument(kept.encode()).blocks == []
    assert upper(f"a\n\n{kept}\n\nb\n") == f"A\n\n{kept}\n\nB\n"


@pytest.mark.parametrize(("text", "expected"), [
    ("# a", "\\# a"), ("1. a", "1\\. a"), ("- a", "\\- a"), ("> a", "\\> a"), ("+ a", "\\+ a"),
    ("a *b* c", "a \\*b\\* c"),
    ("a * b", "a * b"), ("[a](b)", "\\[a&#93;(b)"), ("2 < 3", "2 < 3"), ("<b>", "\\<b>"), ("a\n\n# b", "a # b"),
    ("`a`", "\\`a\\`"), ("&amp;", "\\&amp;"), ("a_b_c", "a_b_c"), ("***", "\\***"), ("---", "\\---"),
    ("| a |", "\\| a |"),
    ("12 a", "12 a"), ("#a", "#a"), ("a # b", "a # b"), ("<https://a.b>", "\\<https://a.b>"), ("=", "\\="),
])
def test_text_is_escaped_only_where_it_would_be_markup(text, expected):
    result = translated(MarkdownDocument(b"x\n"), lambda old: text).decode()
    assert result == expected + "\n"
    assert structure(result) == structure("x\n") or "\\" in expected


def test_a_heading_that_ends_in_a_hash_and_a_cell_with_a_bar_are_escaped():
    assert translated(MarkdownDocument(b"# x\n"), lambda old: "C #").decode() == "# C \\#\n"
    assert translated(MarkdownDocument(b"|x|\n|-|\n"), lambda old: "a|b").decode() == "|a\\|b|\n|-|\n"


@pytest.mark.parametrize(("source", "expected"), [
    ("> x\n---\n", "> b&#124;\n---\n"), ("- x\n---\n", "- b&#124;\n---\n"), ("> > x\n> ---\n", "> > b&#124;\n> ---\n"),
    ("x\n---\n", "b&#124;\n---\n"), ("x\n\n---\n", "b|\n\n---\n"), ("x\n***\n", "b|\n***\n"),
    ("# x\n|-|-|\n", "# b&#124;\n|-|-|\n")])
def test_a_bar_above_a_rule_makes_no_table(source, expected):
    result = translated(MarkdownDocument(source.encode()), lambda old: "b|").decode()
    assert result == expected
    kinds = [kind for kind, _ in structure(source)]
    assert [kind for kind, _ in structure(result)] == kinds


def test_emphasis_that_markdown_would_not_recognise_is_written_as_html():
    document = MarkdownDocument(b"a **b** c\n")
    block, = document.blocks

    def rendered(text, *positions):
        tags = tuple(replace(tag, position=position) for tag, position in zip(block.tags, positions, strict=True))
        return document.render([replace(block, text=text, tags=tags)], "en").decode()

    assert rendered("x y z", 2, 3) == "x **y** z\n"
    assert rendered("x y z", 1, 4) == "x **y** z\n"                     # white space moves out
    assert rendered("x(y)z", 1, 4) == "x<strong>(y)</strong>z\n"


def test_an_asterisk_at_the_end_of_emphasis_stays_in_it():
    assert upper("*a\\**\n") == "*A\\**\n"
    assert upper("b *a\\** * c\n") == "B <em>A*</em> * C\n"


def test_underscores_inside_of_words_become_html():
    document = MarkdownDocument(b"a _b_ c\n")
    block, = document.blocks
    tags = tuple(replace(tag, position=position) for tag, position in zip(block.tags, (2, 4), strict=True))
    assert document.render([replace(block, text="xyzuv", tags=tags)], "en") == b"xy<em>zu</em>v\n"


def test_a_link_over_two_lines_keeps_the_prefix_of_its_lines():
    assert upper("> [a](b\n> 'c') d\n") == "> [A](b\n> 'C') D\n"


def test_a_line_of_a_code_span_does_not_become_a_line_of_a_table():
    assert upper("* |`|a\n|-|-|\n`b\n") == "* \\|`|a |-|-| `B\n"


SOURCES = st.lists(st.sampled_from([
    "a", "b c", " ", "\n", "\n\n", "*", "**", "_", "`", "~~", "[", "](x)", "![", "> ", "- ", "1. ", "# ", "|",
    "\n|-|-|\n", "\\",
    "&amp;", "<b>", "</b>", "<", "  \n", "\\\n", "\t", "    ", "\r\n", "[^1]", "[x]: y", "---\n", "```\n", "=", "ä"]),
    max_size=20).map("".join)


@few_and_many(10, 5000, SOURCES)
def test_blocks_and_tags_are_found_again(source):
    document = MarkdownDocument(source.encode())
    assume(not any(is_data(block.text) for block in document.blocks))
    assert document.render(document.blocks, "en") == source.encode()
    for block in document.blocks:
        assert block.text.strip()
    again = MarkdownDocument(translated(document, str.swapcase))
    assume(not document.left_out)
    assert [block.text.lower().split() for block in again.blocks] == [          # data keeps its case
        block.text.lower().split() for block in document.blocks]
    assert [[tag.kind for tag in block.tags] for block in again.blocks] == [
        [tag.kind for tag in block.tags] for block in document.blocks]


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(SOURCES, st.text("ab *_`[]()<>&#-+1.|~!\\\n", max_size=20))
@example("![a](x)\n|-|-|\n", "|")
def test_no_translation_changes_the_blocks(source, text):
    source = source.replace("<", "")            # tags that a translation moves to the begin may begin an HTML block
    document = MarkdownDocument(source.encode())
    result = translated(document, lambda old: f"{text}a").decode()
    kinds = [kind for kind, _ in structure(source) if kind.endswith("_open")]
    assert [kind for kind, _ in structure(result) if kind.endswith("_open")] == kinds


def test_a_link_keeps_its_label_when_its_text_changes():
    document = "See [the one][], [two] and [three][3].\n\n[the one]: x\n[two]: y\n[3]: z\n"
    assert upper(document).startswith("SEE [THE ONE][the one], [TWO][two] AND [THREE][3].\n\n[the one]: x\n")


def test_underscores_that_were_escaped_stay_text():
    assert upper("fix \\_\\_exit\\_\\_ on\n") == "FIX \\_\\_EXIT\\_\\_ ON\n"


@pytest.mark.parametrize(("source", "expected"), [
    (":::note\nSome text.\n:::\n", ":::note\nSOME TEXT.\n:::\n"),
    ('!!! note "Title"\n    text\n', '!!! note "TITLE"\n    TEXT\n'),
    ("{: .class #id}\nOne\n", "{: .class #id}\nONE\n"),
    ("One:\n$$\n\\frac{a}{b}\n$$\ntwo\n", "ONE:\n$$\n\\frac{a}{b}\n$$\nTWO\n"),
    ("{% include foo.html %}\none\n", "{% include foo.html %}\nONE\n"), ("# One {#one-id}\n", "# ONE {#one-id}\n"),
    ("one {{ name }} two\n", "ONE {{ name }} TWO\n"), ("Term\n: Definition\n", "TERM\n: DEFINITION\n"),
    ("let $x_1$ be $5 and $6\n", "LET $x_1$ BE $5 AND $6\n"), ("- a\n  :::\n  b\n", "- A\n  :::\n  B\n"),
    ("|a|\n|-|\n|One<br>Two<br/>Three|\n", "|A|\n|-|\n|ONE<br>TWO<br/>THREE|\n"),
    ("run <code>make *all*</code> or <kbd>Ctrl</kbd>\n", "RUN <code>make *all*</code> OR <kbd>Ctrl</kbd>\n"),
    ("a <code>b c\n", "A <code>B C\n")])
def test_lines_and_marks_of_extensions_stay(source, expected):
    document = DividedDocument(MarkdownDocument(source.encode()))
    assert document.join(document.sentences, "en") == source.encode()
    assert document.join(list(map(str.upper, document.sentences)), "en").decode() == expected


# Markdown of site generators, and its translation into upper case, by name.
EXTENSIONS = {
    "collapsible blocks": (
        '??? note "### A cat"\n    A dog.\n\n???+ tip "A dog"\n    Text.\n\n        code\n\n    - More\n',
        '??? note "### A CAT"\n    A DOG.\n\n???+ tip "A DOG"\n    TEXT.\n\n        code\n\n    - MORE\n'),
    "admonition with classes": (
        '!!! warning inline end "A *dog*"\n\n    Text.\n\n\n    More.\n',
        '!!! warning inline end "A *DOG*"\n\n    TEXT.\n\n\n    MORE.\n'),
    "admonition without a title": ('!!! note ""\n    Text.\n', '!!! note ""\n    TEXT.\n'),
    "content tabs": (
        '=== "Tab one"\n\n    ```py\n    code\n    ```\n\n=== "Two"\n\n    !!! note "Title"\n'
        "        Text.\n",
        '=== "TAB ONE"\n\n    ```py\n    code\n    ```\n\n=== "TWO"\n\n    !!! note "TITLE"\n'
        "        TEXT.\n"),
    "tabs in a list": ('1. One\n\n    === "Tab"\n\n        Text.\n', '1. ONE\n\n    === "TAB"\n\n        TEXT.\n'),
    "admonition in a quote": ('> !!! note "Title"\n>     Text.\n', '> !!! note "TITLE"\n>     TEXT.\n'),
    "table of contents": (
        "[TOC]\nText.\n\n[[_TOC_]]\n\n* Text\n{:toc}\n",
        "[TOC]\nTEXT.\n\n[[_TOC_]]\n\n* TEXT\n{:toc}\n"),
    "definition list": (
        "Term\n\n:   One.\n\n    Two.\n\nTerm *a*\n: Three\n: Four\n",
        "TERM\n\n:   ONE.\n\n    TWO.\n\nTERM *A*\n: THREE\n: FOUR\n"),
    "definition of three terms": ("One\n    two\nThree\n:   Text.\n", "ONE\n    TWO\nTHREE\n:   TEXT.\n"),
    "formulas in a text": (
        "Let \\(x\\), $y$, $$z$$, \\[v\\] and $\\alpha$ cost $5 or $6.\n",
        "LET \\(x\\), $y$, $$z$$, \\[v\\] AND $\\alpha$ COST $5 OR $6.\n"),
    "formula at the beginning": ("$x$ is 5\n", "$x$ IS 5\n"),
    "blocks of formulas": (
        "Text:\n$$\na\n\nb\n$$ (eq)\nmore\n\n\\[\na\n\\]\n\n\\begin{align*}\na\n\nb\n\\end{align*}\n",
        "TEXT:\n$$\na\n\nb\n$$ (eq)\nMORE\n\n\\[\na\n\\]\n\n\\begin{align*}\na\n\nb\n\\end{align*}\n"),
    "formula in a list": ("- Text:\n\n  $$\n  a\n  $$\n\n  more $$\n", "- TEXT:\n\n  $$\n  a\n  $$\n\n  MORE $$\n"),
    "roles": (
        "See {doc}`one`, {ref}`the\n    title <target>`, {py:func}`two`, {math}`a <b>` and {term}`x`.\n",
        "SEE {doc}`one`, {ref}`THE TITLE <target>`, {py:func}`two`, {math}`a <b>` AND {term}`x`.\n"),
    "targets, comments and breaks of MyST": (
        "(label)=\n# Title\n\n% comment\n\n+++ cell\n\nText.\n",
        "(label)=\n# TITLE\n\n% comment\n\n+++ cell\n\nTEXT.\n"),
    "directive with options": (
        "```{note} Title\n:class: dropdown\n:name: a b\n\nText.\n```\n",
        "```{note} TITLE\n:class: dropdown\n:name: a b\n\nTEXT.\n```\n"),
    "directive with options in YAML": (
        ":::{tip}\n---\nclass: a b\n---\nText.\n:::\nMore.\n",
        ":::{tip}\n---\nclass: a b\n---\nTEXT.\n:::\nMORE.\n"),
    "nested directives": (
        "::::{tab-set}\n:::{tab-item} Label\nText.\n:::\n::::\n\n:::{figure} a.png\nText.\n:::\n",
        "::::{tab-set}\n:::{tab-item} LABEL\nTEXT.\n:::\n::::\n\n:::{figure} a.png\nTEXT.\n:::\n"),
    "directives that are no text": (
        ":::{code-block} py\na b\n:::\n\n```{math}\na b\n```\n\n```{toctree}\na\n```\ntext\n",
        ":::{code-block} py\na b\n:::\n\n```{math}\na b\n```\n\n```{toctree}\na\n```\nTEXT\n"),
    "attributes": (
        "One *two*{.a} [three](b){ .c } `d`{.py} [four]{.e} ![five](f){ width=9 }\n{ .annotate }\n\n"
        "# Six {#g}\n",
        "ONE *TWO*{.a} [THREE](b){ .c } `d`{.py} [FOUR]{.e} ![FIVE](f){ width=9 }\n{ .annotate }\n\n"
        "# SIX {#g}\n"),
    "blocks of pymdown": (
        "/// note | A *title*\n    type: warning\n    open: True\n\nText.\n///\n\n/// html | div.a\nb\n"
        "///\n\n/// fancylists | type=a start=9\n\n///\n",
        "/// note | A *TITLE*\n    type: warning\n    open: True\n\nTEXT.\n///\n\n/// html | div.a\nB\n"
        "///\n\n/// fancylists | type=a start=9\n\n///\n"),
    "caption": ("Text.\n/// caption\nMore.\n///\n", "TEXT.\n/// caption\nMORE.\n///\n"),
    "snippets": (
        '--8<-- "a b.md"\n\n--8<--\na.md\n\nb.md\n--8<--\n\n;--8<-- "c"\n\nText.\n',
        '--8<-- "a b.md"\n\n--8<--\na.md\n\nb.md\n--8<--\n\n;--8<-- "c"\n\nTEXT.\n'),
    "abbreviations": ("HTML.\n\n*[HTML]: Hyper text\n*[W3C]: Web\n", "HTML.\n\n*[HTML]: HYPER TEXT\n*[W3C]: WEB\n"),
    "marks": (
        "Some ==marked text==, ^^more^^, H~2~O, x^2^, y^[a](#b)^, a == b, c==d.\n",
        "SOME ==MARKED TEXT==, ^^MORE^^, H~2~O, X^2^, Y^[a](#b)^, A == B, C==D.\n"),
    "keys": ('Press ++ctrl+alt+"my key"++ in C++ and D++.\n', 'PRESS ++ctrl+alt+"my key"++ IN C++ AND D++.\n'),
    "icons": (
        "Run :material-run-fast: to :x: at 10:30:15 :octicons-mark-16:{ .lg } now.\n",
        "RUN :material-run-fast: TO :x: AT 10:30:15 :octicons-mark-16:{ .lg } NOW.\n"),
    "Hugo": (
        '{{< a b="c d" >}}\n\n{{% note %}}\nText {{< ref "x y" >}} more.\n{{% /note %}}\n\n'
        "{{< highlight go >}}\na b\n\nc\n{{< /highlight >}}\n",
        '{{< a b="c d" >}}\n\n{{% note %}}\nTEXT {{< ref "x y" >}} MORE.\n{{% /note %}}\n\n'
        "{{< highlight go >}}\na b\n\nc\n{{< /highlight >}}\n"),
    "Jekyll": (
        '{% include a.html\n  b="c d" %}\nText {{ a.b | c }} more {# d #}.\n\n{% highlight rb %}\na\n\n'
        "b\n{% endhighlight %}\n",
        '{% include a.html\n  b="c d" %}\nTEXT {{ a.b | c }} MORE {# d #}.\n\n{% highlight rb %}\na\n\n'
        "b\n{% endhighlight %}\n"),
    "Docusaurus": (
        ":::tip[A *title*]{#a}\n\nText.\n\n:::\n\n:::note Title\n\nText.\n\n:::\n",
        ":::tip[A *TITLE*]{#a}\n\nTEXT.\n\n:::\n\n:::note TITLE\n\nTEXT.\n\n:::\n"),
    "VitePress": (
        "::: details Click here {open}\nText.\n:::\n\n<<< @/a.js{2}\n",
        "::: details CLICK HERE {open}\nTEXT.\n:::\n\n<<< @/a.js{2}\n"),
    "mkdocstrings": (
        "::: a.b.c\n    options:\n      show: false\n\nText.\n",
        "::: a.b.c\n    options:\n      show: false\n\nTEXT.\n"),
    "MDX": (
        'import A from \'a\';\nexport const b = 1;\n\n<Tabs a={b}>\n<Tab b="c">\n\n'
        "Text <A b={c} d='e'/> more {/* f */}.\n\n</Tab>\n</Tabs>\n",
        'import A from \'a\';\nexport const b = 1;\n\n<Tabs a={b}>\n<Tab b="c">\n\n'
        "TEXT <A b={c} d='e'/> MORE {/* f */}.\n\n</Tab>\n</Tabs>\n"),
    "alerts": (
        "> [!NOTE]\n> One\n> two.\n\n> [!tip]- A title\n> Text.\n",
        "> [!NOTE]\n> ONE TWO.\n\n> [!tip]- A TITLE\n> TEXT.\n"),
    "inline footnote": ("One^[A dog.] two.\n", "ONE^[A DOG.] TWO.\n"),
    "titles of links and images": (
        'One [two](a "A dog") ![three](b \'A cat\') [![four](c)](d (A cow)).\n',
        'ONE [TWO](a "A DOG") ![THREE](b \'A CAT\') [![FOUR](c)](d (A COW)).\n'),
    "equal links and images": (
        'One [two](a "b") [three](a "b") ![four](c) ![four](c).\n',
        'ONE [TWO](a "B") [THREE](a "B") ![FOUR](c) ![FOUR](c).\n'),
    "titles of references": ('[One][a]\n\n[a]: b "A dog"\n[c]: d\n', '[ONE][a]\n\n[a]: b "A DOG"\n[c]: d\n'),
    "images alone": ("> ![A *dog*](a.png)\n> ![b.png](b.png)\n", "> ![A *DOG*](a.png)\n> ![b.png](b.png)\n"),
    "front matter": (
        "---\ntitle: A dog\ndescription: 'It''s: a cat'\nslug: a dog\ntags: [a b]\nsummary: >\n"
        "  folded\n---\n",
        '---\ntitle: A DOG\ndescription: "IT\'S: A CAT"\nslug: a dog\ntags: [a b]\nsummary: >\n'
        "  folded\n---\n"),
    "front matter of Hugo": (
        '+++\ntitle = "A dog"\ndate = 2020-01-01\n+++\n',
        '+++\ntitle = "A DOG"\ndate = 2020-01-01\n+++\n'),
    "front matter in JSON": ('{\n  "title": "A dog"\n}\n\nText.\n', '{\n  "title": "A dog"\n}\n\nTEXT.\n'),
    "lists in a cell": (
        "|a|\n|-|\n|<ul><li>one</li><li>two</li></ul>|\n",
        "|A|\n|-|\n|<ul><li>ONE</li><li>TWO</li></ul>|\n"),
}


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("name", EXTENSIONS)
def test_text_of_extensions_is_translated_and_their_markup_stays(name, mark, line_end):
    source, expected = ((mark + text).replace("\n", line_end) for text in EXTENSIONS[name])
    document = MarkdownDocument(source.encode())
    assert document.render(document.blocks, "en") == source.encode()
    assert upper(source) == expected


@pytest.mark.parametrize("line", [
    "!!! note", "???+ tip", '=== "a"', ":::", "/// a", "[TOC]", "$$", "\\[", "\\begin{align}", "(a)=", "% a", "+++",
    ": a", "~ a", "--8<-- a", "*[a]: b", "{: .a}", "{{ a }}", "{% a %}", "{{< a >}}", "[!NOTE]", ":a: b",
    "```{note}", "import 'a'", "[^1]: a", "[a]: b", "==a==", "$a$", "\\(a\\)", "{ref}`a <b>`", ":a:", "++a++", "^a^",
    "~a~", "^[a]", "[a]{.b}", "<A b={c}/>", "a\\"])
@pytest.mark.parametrize("frame", ["{}\n", "- {}\n", "> {}\n\n$$\na\n$$\n", "# {}\n", "|{}|\n|-|\n", "Term\n: {}\n",
                                   '!!! note "{}"\n    Text.\n', "![{}](a)\n", "[^1]: {}\n\n    Text.\n"])
def test_text_that_looks_like_an_extension_stays_text(frame, line):
    document = MarkdownDocument(frame.format("x y").encode())
    result = translated(document, lambda old: f"{line} z" if old == "x y" else old).decode()
    again = MarkdownDocument(result.encode())
    assert [(block.text.split(), block.tags) for block in again.blocks] == [
        ((f"{line} z" if block.text == "x y" else block.text).split(), block.tags) for block in document.blocks]


@pytest.mark.parametrize(("source", "expected"), [
    ("[:a: b](c) d\n", "[:a: B](c) D\n"), ("# :a: [:b: c](d) e\n", "# :a: [:b: C](d) E\n"),
    ("*:a: b* c\n", "*:a: B* C\n"), ("a [b ![](c)](d)\n", "A [B ![](c)](d)\n"),
    ("[![](a) b](c) d\n", "[![](a) B](c) D\n"), ("[  \na](b) c\n", "[  \nA](b) C\n")])
def test_a_space_beside_an_icon_at_the_edge_of_a_link_stays(source, expected):
    assert upper(source) == expected


def test_pieces_of_code_stay_apart():
    document = MarkdownDocument(b"x `a` / `b` y\n")
    block, = document.blocks
    tags = tuple(replace(tag, position=2) for tag in block.tags)
    assert document.render([replace(block, tags=tags)], "en") == b"x `a` `b` /  y\n"


def test_a_text_that_cannot_be_expressed_stays_and_is_reported():
    document = MarkdownDocument(b"x\n\ny `a` / `b` z\n")
    first, second = document.blocks
    tags = tuple(replace(tag, position=1) for tag in second.tags)
    assert document.render([replace(first, text="X"), replace(second, text="YZ", tags=tags)], "en") == (
        b"X\n\ny `a` / `b` z\n")
    assert document.left_out == ["line 3"]
    assert document.render(document.blocks, "en") == b"x\n\ny `a` / `b` z\n"
    assert document.left_out == []


def test_a_cell_with_no_break_spaces_is_translated():
    assert upper("| a\N{NO-BREAK SPACE} | b\n|-|-|\n") == "| A\N{NO-BREAK SPACE} | B\n|-|-|\n"


PIECES = st.lists(st.sampled_from([
    "a b", "c", " ", "\n", "\n\n", "    ", "> ", "- ", "# ", "|", "!!! note\n", '??? tip "a"\n    ',
    '=== "a"\n\n    ', "$", "$$", "\n$$\n", "\\(", "\\)", "\\[", "\\]", "\\begin{Align}\n",
    "\n\\end{Align}", "{ref}`", " <b>`", "(a)=\n", "```{note} a\n", "```\n", ":::{tip}\n", ":::\n", ":::a[",
    "::: a b\n", "{.a}", "{: #a}", "[", "]", "](b)", "](b 'c')", "![", "/// a | b\n", "///\n", "--8<--\n",
    "*[a]: b\n", "==", "^^", "^", "~", "++", ":a:", "{{ a }}", "{%", "%}", "{{<", ">}}",
    "% a\n", "+++\n", "<A b={c}/>", "<A\n", "import 'a'\n", "[!NOTE]\n", "[^1]", "[^1]: ", "^[",
    "[TOC]\n", "---\n", "title: a\n", ": ", "\n: ", "\n|-|\n",
    "\t", "\r\n", "\\", "`", "*", "_"]), max_size=20).map("".join)


@few_and_many(20, 2_000, PIECES)
@example("> % a\n> ")
@example("\\begin{Align}\n\n\\end{Align}a b\n\\end{Align}")
def test_blocks_and_tags_of_extensions_are_found_again(source):
    document = MarkdownDocument(source.encode())
    assume(not any(is_data(block.text) for block in document.blocks))
    assert document.render(document.blocks, "en") == source.encode()
    again = MarkdownDocument(translated(document, str.swapcase))
    assume(not document.left_out)
    assert [(block.text.lower().split(), [tag.kind for tag in block.tags]) for block in again.blocks] == [
        (block.text.lower().split(), [tag.kind for tag in block.tags]) for block in document.blocks]


@pytest.mark.parametrize(("source", "expected"), [
    ("a \\{x\\} b", "A \\{X\\} B"), ("a &lbrace;x&rbrace; b", "A &lbrace;X&rbrace; B"),
    ("from \\$5-\\$6 a", "FROM \\$5-\\$6 A"), ("a &#123;&#123; x &#125;&#125;", "A &#123;&#123; X &#125;&#125;"),
    ("\\# a \\+ b\\_c &copy;", "\\# A \\+ B\\_C &copy;"), ("## \\@a \\~b\\~", "## \\@A \\~B\\~"),
    ("| \\{a\\} | b \\| c |\n|-|-|\n", "| \\{A\\} | B \\| C |\n|-|-|\n"), ("![\\{a\\} b](c)", "![\\{A\\} B](c)"),
    ("[a](b \"\\{c\\} d\")\n\n[e]: f '&lbrace;g'\n", "[A](b \"\\{C\\} D\")\n\n[e]: f '&lbrace;G'\n"),
    # A mark of CommonMark that is also text without its escape
    ("a\\. b\\-c - d.", "A. B-C - D."), ("b\\_c or a_d", "B_C OR A_D"),
])
def test_a_character_that_the_source_escapes_is_escaped_again(source, expected):
    assert upper(source) == expected


@pytest.mark.parametrize("formula", [
    "\\\\(x+y\\\\)", "\\\\[ x = y \\\\]", "\\(x\\)", "\\\\(a\\\\{b\\\\}\\\\)", "\\\\[x\ny\\\\]",
    "\\begin{align*}\nx &= y\n\\end{align*}", "\\begin{align}", "\\end{align}"])
def test_formulas_and_their_delimiters_are_kept(formula):
    assert upper(f"the {formula} dog") == f"THE {formula} DOG"


@pytest.mark.parametrize(("source", "sentences"), [
    ("Two dogs<sup>1</sup> run", ["Two dogs run"]), ("A dog.<sup id=\"a\">[2](#b)</sup> A car", ["A dog.", "A car"]),
    ("dogs<sup>[\\*](#b)</sup> run", ["dogs run"]), ("5 m<sup>2</sup>, 3<sup>rd</sup> dog", ["5 m2, 3rd dog"])])
def test_superscripts_that_refer_to_notes_are_kept(source, sentences):
    document = DividedDocument(MarkdownDocument(source.encode()))
    assert document.sentences == sentences
    assert document.join(sentences, "en") == source.encode()
    assert upper(source).count("<sup") == source.count("<sup")


def test_blocks_of_formulas_with_escaped_delimiters_are_kept():
    assert upper("a\n\n\\\\[\nx = dog\n\nor y\n\\\\]\n\nb\n") == "A\n\n\\\\[\nx = dog\n\nor y\n\\\\]\n\nB\n"


@pytest.mark.parametrize(("source", "expected"), [
    ("[see](#a-red-car)\n\n## A red car\n", "[see](#a-red-äuto)\n\n## A red Äuto\n"),
    ("# The car\n\n# The car\n\n[b](#the-car-1 'c'), <a href=\"#the-car\">d</a>, [1](<#the-car>)\n",
     "# The Äuto\n\n# The Äuto\n\n[b](#the-äuto-1 'c'), <a href=\"#the-äuto\">d</a>, [1](<#the-äuto>)\n"),
    ("A `red` *car*, 2!\n---\n\n> [a][b]\n\n[b]: #a-red-car-2\n",
     "A `red` *Äuto*, 2!\n---\n\n> [a][b]\n\n[b]: #a-red-äuto-2\n"),
    # Rules of MkDocs and GitLab, icons, and letters in another form
    ("## Cars & car\n\n[a](#cars--car) [a](#cars-car)\n", "## Cars & Äuto\n\n[a](#cars--äuto) [a](#cars-äuto)\n"),
    ("## :car: 🚗 car\n\n[a](#car--car) [b](#%63ar--car)\n",
     "## :car: 🚗 Äuto\n\n[a](#car--äuto) [b](#car--%C3%A4uto)\n"),
    # Identifiers that the document gives, code, other documents
    ("## A car {#a-car}\n\n[a](#a-car)\n", "## A Äuto {#a-car}\n\n[a](#a-car)\n"),
    ("<a id=\"car\"></a>\n\n# Car, car\n\n# car\n\n[b](#car) [b](#car-car)\n",
     "<a id=\"car\"></a>\n\n# Car, Äuto\n\n# Äuto\n\n[b](#car) [b](#car-äuto)\n"),
    ("# car\n\n`[b](#car)` [b](x.md#car)\n\n```\n[b](#car)\n```\n",
     "# Äuto\n\n`[b](#car)` [b](x.md#car)\n\n```\n[b](#car)\n```\n"),
])
def test_links_lead_to_the_translated_headings(source, expected):
    faults = []
    divided = DividedDocument(MarkdownDocument(source.encode()))
    result = divided.join([one.replace("car", "Äuto") for one in divided.sentences], "de",
                          report=lambda place, fault: faults.append(place))
    assert (result.decode(), faults) == (expected, [])


def test_a_link_to_an_unknown_place_stays_and_is_reported():
    document = MarkdownDocument(b"# A car\n\n[a](#a-car) b\n[c](#a-dog)\n")
    assert translated(document, str.upper) == b"# A CAR\n\n[A](#a-car) B [C](#a-dog)\n"
    assert document.left_out == ["line 4"]
