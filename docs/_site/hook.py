"""Hooks of MkDocs: `mkdocs.yml` names this file.

The sources of the site have their paths in the repository, so that the same relative links work in both. Pages from
outside of docs/, and the text of files to which pages link, become pages, too. Addresses of the site lack `docs/`.
"""

import ast
import html
import json
import re
import textwrap
from pathlib import Path

import latex2mathml.converter
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[2]
# Pages outside of docs/.
PAGES = ("recipes/*.md", "recipes/*/*.md", "examples/*/*.md", "benchmarks/*.md", "CONTRIBUTING.md", "CHANGELOG.md",
         "SECURITY.md")
# Files that are copied; of other files to which pages link, the site has a page with the text.
COPIED = (".png", ".svg")
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
# A paragraph that is only a link to a function or class: on the site, its source follows.
CODE = re.compile(r"^\[`([\w.]+)` in `[^`]+`\]\(([^)]+\.py)\)$", re.MULTILINE)
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CELL = re.compile("<td.*?</td>", re.DOTALL)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files, config):
    """Give the sources in docs/ their path in the repository, and add the pages and files from outside, and the
    reference."""
    site = Files([])
    for file in files:
        if file.src_dir == config.docs_dir:
            if file.src_uri.endswith(".py"):
                continue
            # These properties follow from the source path, and are computed once.
            assert file.dest_uri and file.url and file.abs_src_path and file.name
            file.src_uri = f"docs/{file.src_uri}"
        site.append(file)
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            site.append(_from_repository(config, path.relative_to(ROOT).as_posix()))
    for name, content in {"commands": command_reference(), "python": python_reference()}.items():
        site.append(File.generated(config, f"reference/{name}.md", content=content))
    pages = list(site.documentation_pages())
    for page in pages:                                                          # those of files are appended
        for path in _linked_files(page.src_uri, page.content_string):
            name = path.relative_to(ROOT).as_posix()
            if name in site.src_uris or f"{name}.md" in site.src_uris:
                continue
            if path.suffix in COPIED:
                site.append(_from_repository(config, name))
            else:
                pages.append(File.generated(config, f"{name}.md", content=_file_page(path),
                                            inclusion=InclusionLevel.NOT_IN_NAV))
                site.append(pages[-1])
    return site


def on_page_markdown(markdown, page, config, files):
    """Insert the source of the functions that are named, replace diagrams by tables, and complete links to files."""
    directory = (ROOT / page.file.src_uri).parent
    markdown = CODE.sub(lambda found: f"{found[0]}\n\n```python\n{source_of(directory / found[2], found[1])}\n```",
                        markdown)
    markdown = MERMAID.sub(lambda found: edges_as_table(found[1]), markdown)
    linked = {path for path in _linked_files(page.file.src_uri, markdown)
              if f"{path.relative_to(ROOT).as_posix()}.md" in files.src_uris}
    return LINK.sub(lambda found: found[0].rstrip("/") + ".md" if (directory / found[1]).resolve() in linked
                    else found[0], markdown)


def on_page_content(content, page, config, files):
    """Turn formulas into MathML, which browsers show without a script, and `\\|` in the code of a table into a bar."""
    content = CELL.sub(lambda found: found[0].replace(r"\|", "|"), content)
    return FORMULA.sub(lambda found: _formula(html.unescape(found[3]).strip(), block=found[2] == "["), content)


def _formula(text, block):
    formula = latex2mathml.converter.convert(text, display="block" if block else "inline")
    if "\\" in formula:                                                         # an unknown command stays as it is
        raise PluginError(f"a formula has an unknown command: {text}")
    return formula


def _from_repository(config, name):
    return File.generated(config, name, abs_src_path=str(ROOT / name))


def _linked_files(source, markdown):
    """Yield the files and folders of the repository, other than pages, to which a page links."""
    for target in LINK.findall(markdown):
        path = (ROOT / source).parent.joinpath(target).resolve()
        if path.exists() and path.suffix != ".md" and path.is_relative_to(ROOT) and path != ROOT:
            yield path


def _file_page(path):
    """Return a page with the text of a file, or with the files in a folder."""
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir() if each.name[0] not in "._" and each.name != "data")
        return f"# {path.name}\n\n" + "\n".join(f"- [{name}]({path.name}/{name})" for name in names)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return _notebook_page(path.name, json.loads(text))
    language = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}.get(path.suffix, "text")
    fence = "`" * (3 + max(map(len, re.findall("`+", text)), default=0))
    return f"---\nsearch: {{exclude: true}}\n---\n\n# {path.name}\n\n{fence}{language}\n{text}\n{fence}\n"


def _notebook_page(name, notebook):
    """Return a page with the cells of a notebook and their outputs."""
    parts = ["---\nsearch: {exclude: true}\n---",
             f"*The notebook `{name}` with the outputs of its last run. To run it: "
             f"`pip install jupyterlab`, then `jupyter lab examples/{name}` in a clone.*"]
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def _output(output):
    """Return the richest form of an output of a notebook as Markdown: picture, HTML or text."""
    data = output.get("data", {})
    if "image/png" in data:
        encoded = "".join("".join(data["image/png"]).split())
        return f'<img alt="output of the cell above" src="data:image/png;base64,{encoded}">'
    if "text/html" in data:
        return re.sub(r"\n\s*\n", "\n", "".join(data["text/html"]))              # a blank line would end the HTML
    text = "".join(output.get("text") or data.get("text/plain", ""))
    return f"```text\n{text}\n```"


def source_of(path, name):
    """Return the source of a function or class, with its dotted name, from a Python file."""
    text = path.read_text(encoding="utf-8")
    node = ast.parse(text)
    for part in name.split("."):
        found = [child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == part]
        if not found:
            raise PluginError(f"{path.resolve().relative_to(ROOT)} has no {name}")
        (node,) = found
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]))


def edges_as_table(diagram):
    """Return the arrows of a Mermaid graph as a table, because Mermaid would be a script of several megabytes."""
    targets = {}
    for name, target in re.findall(r"^\s*(\w+) --> (\w+)$", diagram, re.MULTILINE):
        targets.setdefault(name, []).append(f"`{target}`")
    rows = [f"| `{name}` | {', '.join(found)} |" for name, found in targets.items()]
    return "\n".join(["| chapter | imports |", "|---|---|", *rows])


def command_reference():
    """Return a page with the help of all commands."""
    import typer

    from seq2seq import cli

    group = typer.main.get_command(cli.application([]))
    text = ["# Command line", "The same text as `seq2seq COMMAND --help`."]
    for name, command in group.commands.items():
        context = typer.Context(command, info_name=f"seq2seq {name}")
        usage = " ".join(command.collect_usage_pieces(context))
        text += [f"## seq2seq {name}", f"```\nseq2seq {name} {usage}\n```", _escaped(command.help)]
        parameters = [each for each in command.get_params(context) if not getattr(each, "hidden", False)]
        for kind in ("argument", "option"):
            rows = [_parameter_row(each, context) for each in parameters if each.param_type_name == kind]
            if rows:
                text.append("\n".join([f"| {kind} | meaning | default |", "|---|---|---|", *rows]))
        lines = [line.replace(r"\[", "[") for line in (command.epilog or "").split("\n\n")[1:]]
        text += [_escaped(line) if re.match("[A-Z]", line) else f"```\n{line}\n```" for line in lines]
    return "\n\n".join(text).replace("```\n\n```\n", "") + "\n"


def _parameter_row(parameter, context):
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar}`"
    elif parameter.metavar:
        names += f" `{parameter.metavar}`"
    default = parameter.get_default(context)
    if isinstance(parameter.show_default, str):
        default = parameter.show_default
    elif default is True and parameter.secondary_opts:
        default = parameter.opts[0]
    shown = parameter.show_default and default not in (None, False, ())
    return f"| {names} | {_escaped(parameter.help or '')} | {_escaped(str(default)) if shown else ''} |"


def _escaped(text):
    return re.sub(r"([\\*_|<>\[\]])", r"\\\1", text)


def python_reference():
    """Return a page with the docstrings of all public names."""
    import seq2seq

    keys = "\n    options: {members: []}"                                      # the reference of recipes has their keys
    names = "\n\n".join(f"::: seq2seq.{seq2seq._MODULES[name]}.{name}{keys * (name in ('DecodingOptions', 'Recipe'))}"
                        for name in seq2seq.__all__)
    return ("# Python\n\nThe public names of `seq2seq`, imported by `from seq2seq import …`. Any function may raise a "
            f"`UserError`, whose message says what is wrong and what to do.\n\n{names}\n")
