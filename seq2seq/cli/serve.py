"""`seq2seq serve`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

import seq2seq.cli.options as options
from seq2seq import console
from seq2seq.cli.common import precision_hint
from seq2seq.cli.decoding_options import NO_OVERRIDES, Decoding
from seq2seq.errors import UserError

LIMITS = "Limits"
PACKAGES = {"starlette": "starlette", "uvicorn": "uvicorn", "python-multipart": "python_multipart"}
"""Packages of the extra `serve`, each with the module that it provides."""
LOCAL_ADDRESSES = ("127.0.0.1", "localhost", "::1")

EXAMPLES = ("seq2seq serve runs/multi30k_de_en",
            "seq2seq serve models/de_en models/en_fr --beam-size 1",
            "seq2seq serve runs/multi30k_de_en --api-keys keys.txt --require-key --port 8080",
            "seq2seq serve models/* --host 0.0.0.0 --requests-per-minute 120 --character-limit 5000",
            "seq2seq serve runs/multi30k_de_en --glossary products=terms.tsv",
            "curl -d q='ein Hund läuft' -d source=de -d target=en http://127.0.0.1:5000/translate")


def serve(
    models: Annotated[list[Path], typer.Argument(
        metavar="MODEL", show_default=False, help="Bundles or runs (their best model). No two models may have the same "
        "direction. If no model has the direction of a request, the text is translated through other languages.")],
    host: Annotated[str, typer.Option(
        metavar="ADDRESS", help="Address to listen on. 0.0.0.0 accepts requests from other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on.")] = 5000,
    api_keys: Annotated[Path | None, typer.Option(
        metavar="FILE", help="File with one API key per line. A space and a limit, in requests per minute, may follow.",
        show_default="no keys", rich_help_panel=LIMITS)] = None,
    require_key: Annotated[bool, typer.Option(
        "--require-key", help="Refuse requests without a key of --api-keys.", rich_help_panel=LIMITS)] = False,
    requests_per_minute: Annotated[int, typer.Option(
        metavar="N", min=0, help="Maximum number of requests per minute from an address without a key. A list of n "
        "texts counts as n requests. 0: unlimited.", rich_help_panel=LIMITS)] = 0,
    languages: Annotated[str | None, typer.Option(
        metavar="CODES", help="Languages to serve, separated by commas. Others are refused, also as a step between two "
        "models.", show_default="all of the models")] = None,
    character_limit: Annotated[int, typer.Option(
        metavar="N", min=0, help="Maximum number of characters of a request. 0: unlimited.",
        rich_help_panel=LIMITS)] = 0,
    max_request_bytes: Annotated[int, typer.Option(
        metavar="N", min=1024, help="Maximum size of a request, including files.", rich_help_panel=LIMITS)] = 8 * 2**20,
    seconds_per_minute: Annotated[int, typer.Option(
        metavar="N", min=0, help="Maximum time that the model computes per minute for a key, or for an address without "
        "a key. 0: unlimited.", rich_help_panel=LIMITS)] = 0,
    seconds_per_request: Annotated[int, typer.Option(
        metavar="N", min=1, help="Maximum time that the model computes for a request.",
        rich_help_panel=LIMITS)] = 300,
    trusted_proxy: Annotated[list[str] | None, typer.Option(
        metavar="ADDRESS", help="Address or network of a reverse proxy whose X-Forwarded-For, X-Forwarded-Proto "
        "and X-Forwarded-Prefix are believed. Without it, limits by address count all clients of a proxy as one. Can "
        "be repeated.",
        show_default="none", rich_help_panel=LIMITS)] = None,
    max_waiting: Annotated[int, typer.Option(
        metavar="N", min=1, help="Maximum number of sentences that wait to be translated. Further requests are "
        "refused with status 429.", rich_help_panel=LIMITS)] = 10_000,
    glossary: Annotated[list[str] | None, typer.Option(
        metavar="NAME=FILE", help="Glossary that requests can use by NAME (see seq2seq translate). Can be repeated.",
        show_default=False)] = None,
    glossary_directory: Annotated[Path | None, typer.Option(
        metavar="DIR", help="Accept glossaries of clients over DeepL's interface, and store them in this directory.",
        show_default="not accepted")] = None,
    suggestions: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Accept suggestions of better translations, and append them to this file as JSONL.",
        show_default="not accepted")] = None,
    log_text: Annotated[bool, typer.Option(
        "--log-text", help="Write texts and translations to the log.")] = False,
    log_format: Annotated[options.TextOrJson, typer.Option(
        help="Format of the log on standard error. json: an object per line.")] = options.TextOrJson.text,
    decoding: Decoding = NO_OVERRIDES,
    batch_tokens: Annotated[int, typer.Option(
        metavar="N", min=1, help="Approximate maximum number of source tokens in a batch with a beam of 5; with other "
        "beams, it has fewer or more in proportion. With a smaller number, requests wait less for each other.",
        rich_help_panel=options.SEARCH)] = 512,
    device: options.Device = "auto",
    precision: options.PrecisionOption = options.Precision.auto,
    threads: options.Threads = None,
) -> None:
    """Translate over HTTP, with the interfaces of LibreTranslate and DeepL.

    The server's page /docs describes them. If the files of a model change, the server reloads this model. After SIGHUP,
    it reloads all models.
    """
    if require_key and api_keys is None:
        raise UserError("--require-key needs keys. Add --api-keys FILE.")
    if missing := [name for name, module in PACKAGES.items() if find_spec(module) is None]:
        raise UserError(f"seq2seq serve needs packages that are not installed: {', '.join(missing)}. Install the "
                        "extra: pip install 'seq2seq-mt[serve]'")
    from seq2seq.data.language_identification import is_installed
    from seq2seq.serve import server
    from seq2seq.serve.api import Settings
    from seq2seq.serve.deepl_glossaries import GlossaryStore
    from seq2seq.serve.limits import Limits, read_keys
    from seq2seq.serve.models import MachineOptions, Models, named_files
    from seq2seq.serve.service import Service

    limits = Limits(read_keys(api_keys) if api_keys else {}, require_key, requests_per_minute, seconds_per_minute)
    proxies = server.proxy_networks(trusted_proxy or [])
    settings = Settings(character_limit, max_request_bytes, suggestions, log_text, GlossaryStore(glossary_directory))
    with server.listen(host, port) as listening:
        served = [code.strip() for code in languages.split(",")] if languages else []
        machine = MachineOptions(device, precision.value, threads, decoding.values, decoding.name, served)
        loaded = Models.load(models, machine, named_files(glossary or []))
        as_json = log_format is options.TextOrJson.json
        server.log_to_standard_error(as_json)
        say, warn = (server.logger.info, server.logger.warning) if as_json else (console.print_message, console.warn)
        *lines, last = loaded.describe()
        for line in (*lines, f"{last}{precision_hint(precision, loaded.precisions)}"):
            say(line)
        app = server.application(
            Service(loaded, batch_tokens, max_waiting, seconds_per_request, limits.charge), limits, settings)
        address, listening_port = listening.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        say(f"listening on http://{shown}:{listening_port}, where /docs describes the interface")
        if host not in LOCAL_ADDRESSES and not (require_key or requests_per_minute):
            warn("every machine that reaches this address can use the server without limits. Consider "
                 "--api-keys with --require-key, or --requests-per-minute.")
        if not is_installed():
            warn("the extra `language` is not installed, so the server identifies languages by script alone. Requests "
                 "with source=auto are refused if their text can be in several languages of the models.")
        server.serve(app, listening, proxies)
