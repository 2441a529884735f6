"""Documentation: links, commands, worked numbers and named code are right, and the site builds."""

import ast
import doctest
import html.parser
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer
from browsers import start_browser

from seq2seq import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for pattern in ("*.md", "docs/**/*.md", "recipes/**/*.md", "benchmarks/*.md", "deploy/**/*.md")
               for path in ROOT.glob(pattern) if "data" not in path.parts)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
FENCE = re.compile(r"^ *```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!`)\[[^\]]*\]\((?!\w+:)([^)\s]+)\)|<img[^>]* src=\"(?!\w+:)([^\"]+)\"")
COMMAND = re.compile(r"\s*(?:\$ |\w+=)?(?:\S*/)?(?:seq2seq|(?:torchrun|srun|python) .*-m seq2seq)(?= +-*[a-z]) +(.*)")
# The name of a function or class, and its file: the site shows its source there.
CODE = re.compile(r"^\[`([\w.]+)` in `[^`]+`\]\(([^)]+\.py)\)$", re.MULTILINE)


def prose(page):
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page):
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    found = []
    for heading in re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.append(anchor if anchor not in found else f"{anchor}-{found.count(anchor)}")
    return found


@every_page
def test_every_link_leads_to_a_file_and_a_heading(page):
    for target in filter(None, (link for found in LINK.findall(prose(page)) for link in found)):
        name, _, anchor = target.partition("#")
        path = (page.parent / unquote(name)).resolve() if name else page
        assert path.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors(path), f"{target}: no such heading"


@pytest.fixture(scope="module")
def group():
    """The command line, which is parsed, but runs nothing."""
    group = typer.main.get_command(cli.application([]))
    for command in group.commands.values():
        command.callback = lambda **values: None
    return group


def command_lines(text):
    """Yield the words of each command of seq2seq in the code of a page, without redirections and comments."""
    code = [found["text"] for found in FENCE.finditer(text) if found["language"] in ("", "bash", "console", "ini")]
    code += re.findall(r"(?:^(?: {4,}|\t).*\n)+", FENCE.sub("", text), re.MULTILINE)
    for line in "\n".join(code).replace("\\\n", " ").splitlines():
        found = COMMAND.match(line)
        if found and "…" not in line:
            yield re.split(r" [<>|] ?| 2> | && |; ", f"{found[1]} ".split("  #")[0])[0]


@every_page
def test_every_command_has_the_arguments_and_options_of_the_command_line(page, group, capsys):
    for line in command_lines(page.read_text(encoding="utf-8")):
        try:
            group.main(args=[word for word in shlex.split(line, comments=True) if word != "..."], standalone_mode=False)
        except Exception as error:
            raise AssertionError(f"seq2seq {line}: {error}") from error


@every_page
def test_commands_after_a_prompt_are_in_console_blocks_whose_copy_button_leaves_the_prompt_out(page):
    for block in FENCE.finditer(page.read_text(encoding="utf-8")):
        assert block["language"] == "console" or not re.search(r"^\$ ", block["text"], re.MULTILINE), block[0]


def test_commands_are_found_in_every_kind_of_code():
    text = ("```\nseq2seq train a.yaml  # comment\n```\n\n    seq2seq check 'b c.yaml' > out\n\n"
            "```bash\ntorchrun --nproc 2 -m seq2seq \\\n  translate m\n```\n`seq2seq no`\n")
    assert [shlex.split(line) for line in command_lines(text)] == [
        ["train", "a.yaml"], ["translate", "m"], ["check", "b c.yaml"]]
    assert len([line for page in PAGES for line in command_lines(page.read_text(encoding="utf-8"))]) > 80


@pytest.mark.parametrize("page", [page for page in PAGES if ">>> " in page.read_text(encoding="utf-8")],
                         ids=lambda page: page.stem)
def test_the_worked_numbers_are_those_that_the_code_computes(page):
    text = re.sub(r"^```.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    result = doctest.DocTestRunner().run(test)
    assert result.attempted and not result.failed


def test_every_function_beside_an_equation_exists():
    found = [(page, name, file) for page in PAGES for name, file in CODE.findall(page.read_text(encoding="utf-8"))]
    assert len(found) > 30
    for page, name, file in found:
        node = ast.parse((page.parent / file).read_text(encoding="utf-8"))
        for part in name.split("."):
            (node,) = (child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == part)


# The site


class Page(html.parser.HTMLParser):
    """Links, loaded files and anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given.get("id"), given.get("name")}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        self.loaded += [given[key] for key in ("src", "href") if given.get(key) and tag in ("script", "img", "link")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Directory of the site, which builds without a warning."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    pytest.importorskip("material", reason="needs the extra docs")
    directory = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", directory], cwd=ROOT,
                   check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return directory


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_without_a_broken_link(site):
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 40 and "<math" in (site / "equations/attention.html").read_text(encoding="utf-8")
    for path, page in pages.items():
        for address in page.loaded:
            assert not urlsplit(address).netloc, f"{path}: {address} comes from the network"
        for address in (*page.links, *page.loaded):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file() or (target / "index.html").is_file(), f"{path}: {address}"
            if target.suffix == ".html" and parts.fragment:
                assert unquote(parts.fragment) in pages[target].anchors, f"{path}: {address}"


@pytest.mark.slow
def test_copy_buttons_copy_what_is_typed(site):
    browser = start_browser()
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.support.ui import WebDriverWait

    try:
        browser.get((site / "tutorial.html").as_uri())
        find = browser.find_elements
        WebDriverWait(browser, 30).until(lambda _: find("css selector", "[data-copy] button"))
        button = find("css selector", "[data-copy] button")[0]
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        ActionChains(browser).move_to_element(button).click().perform()
        browser.execute_script("const area = document.createElement('textarea'); document.body.append(area);"
                               "area.id = 'pasted'; area.focus()")
        ActionChains(browser).key_down(Keys.CONTROL).send_keys("v").key_up(Keys.CONTROL).perform()
        assert browser.find_element("id", "pasted").get_property("value") == (
            "python ../recipes/multi30k/prepare.py --output text\nhead -n 2 text/train.de text/train.en")
    finally:
        browser.quit()
