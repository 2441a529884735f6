"""Run every command of docs/tutorial.md in order, and write what it prints, and the pictures, into the page.

    python docs/tutorial/make.py WORK
    python docs/tutorial/make.py WORK --text DIRECTORY_WITH_MULTI30K

The page itself says what to run. In a `console` block, a line that begins with `$ ` is a command; the lines below it
are replaced by its output. A comment such as `<!-- lines 3…2 -->` above a block keeps the first 3 and the last 2 lines
of each output of the block. A block with a title is the text of a file. `seq2seq serve` runs until the end of the page.
The pictures need the extra `dev`, Chromium and chromedriver.

WORK stands for the reader's clone: the commands run in WORK/tutorial. Outputs are kept in WORK/outputs, and a command
whose output is there is not run again, so that a new sentence in the page costs no training.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

PAGE = Path(__file__).parents[1] / "tutorial.md"
PICTURES = Path(__file__).parent
RECIPES = Path(__file__).parents[2] / "recipes"
BLOCK = re.compile(r"(?:<!-- lines (\d+)…(\d+) -->\n)?```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)```\n", re.DOTALL)
SERVER = "http://127.0.0.1:5000"
SENTENCES = "Ein Hund läuft über eine Wiese.\nEine Frau in einem roten Kleid tanzt."
"""Text in the picture of the server's page."""
START_SECONDS = 60
"""Maximum time until the server or its page answers."""
SPLITS = {"train": "train", "val": "validation", "test_2016_flickr": "test"}
"""Name on the hub of each split of Multi30k."""


class Reader:
    """Person who follows the page in the directory `work`/tutorial.

    text: directory with Multi30k, which is then not downloaded; None: download it.
    """

    def __init__(self, work: Path, text: Path | None) -> None:
        self.work, self.place, self.outputs = work, work / "tutorial", work / "outputs"
        for directory in (self.place, self.outputs):
            directory.mkdir(parents=True, exist_ok=True)
        if not (work / "recipes").exists():
            (work / "recipes").symlink_to(RECIPES, target_is_directory=True)
        self.hub = None if text is None else hub_copy(text, work / "hub")
        self.server: subprocess.Popen[bytes] | None = None

    def follow(self, page: str) -> str:
        """Run the page, write its pictures, and return it with the new outputs."""
        try:
            page = BLOCK.sub(self._block, page)
            self._draw()
            return page
        finally:
            if self.server:
                self.server.terminate()
                self.server.wait()

    def _block(self, found: re.Match[str]) -> str:
        first, last, language, title, body = found.groups()
        if language == "console":
            commands = re.findall(r"^\$ ((?:.*\\\n)*.*)\n", body, flags=re.MULTILINE)
            kept = (int(first), int(last)) if first else None
            shown = (shorten(self.run(command), kept) for command in commands)
            written = "".join(f"$ {command}\n{output}" for command, output in zip(commands, shown, strict=True))
            return found[0].replace(body, written)
        if title:
            (self.place / title).write_text(body, encoding="utf-8")
        return found[0]

    def _draw(self) -> None:
        """Write the pictures of the page."""
        for file in ("runs/captions/curves.svg", "attention.png"):
            shutil.copy(self.place / file, PICTURES)
        options = webdriver.ChromeOptions()
        for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
                         "--disable-background-networking", "--disable-component-update", "--disable-sync"):
            options.add_argument(argument)
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            browser.set_window_size(1100, 900)
            browser.get((self.place / "report.html").as_uri())
            browser.save_screenshot(str(PICTURES / "report.png"))
            browser.set_window_size(1100, 640)
            browser.get(SERVER)
            browser.find_element("id", "text").send_keys(SENTENCES)
            WebDriverWait(browser, START_SECONDS).until(
                lambda page: page.find_element("id", "translation").text and not page.find_element("id", "state").text)
            browser.save_screenshot(str(PICTURES / "server.png"))
        finally:
            browser.quit()

    def run(self, command: str) -> str:
        """Return the output of a command, on both streams, in the order in which it was written."""
        kept = self.outputs / f"{hashlib.sha256(command.encode()).hexdigest()[:12]}.txt"
        if command.startswith("seq2seq serve"):
            kept.write_text(self._serve(command), encoding="utf-8")
        elif not kept.exists():
            print(f"$ {command}", file=sys.stderr, flush=True)
            hub = f" --hub {self.hub}" if self.hub and "prepare.py" in command else ""
            done = subprocess.run(["bash", "-c", command + hub], cwd=self.place, env=environment(), text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            if done.returncode:
                raise SystemExit(f"exit code {done.returncode} of: {command}\n{done.stdout}")
            kept.write_text(done.stdout, encoding="utf-8")
        output = re.sub(r"[ \t]+$", "", kept.read_text(encoding="utf-8"), flags=re.MULTILINE)
        if str(self.work) in output or str(Path.home()) in output:
            raise SystemExit(f"the output has a path of this machine: {command}\n{output}")
        return output if output.endswith("\n") or not output else f"{output}\n"

    def _serve(self, command: str) -> str:
        with open(self.work / "server.txt", "wb") as log:
            self.server = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=self.place, env=environment(),
                                           stdout=log, stderr=subprocess.STDOUT)
        for _ in range(START_SECONDS):
            time.sleep(1)
            asked = subprocess.run(["curl", "-sf", f"{SERVER}/health"], capture_output=True, check=False)
            if self.server.poll() is not None:                                  # another server may have the port
                break
            if asked.returncode == 0:
                return Path(log.name).read_text(encoding="utf-8")
        raise SystemExit(f"the server does not answer: {Path(log.name).read_text(encoding='utf-8')}")


def environment() -> dict[str, str]:
    """Return the environment of an activated virtual environment, in which tables fit the page."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}


def hub_copy(text: Path, directory: Path) -> Path:
    """Write Multi30k as the hub has it, and return the directory."""
    directory.mkdir(exist_ok=True)
    for name, split in SPLITS.items():
        sides = [(text / f"{name}.{code}").read_text(encoding="utf-8").splitlines() for code in ("de", "en")]
        (directory / f"{split}.jsonl").write_text("".join(
            json.dumps({"de": german, "en": english}, ensure_ascii=False) + "\n"
            for german, english in zip(*sides, strict=True)), encoding="utf-8")
    return directory


def shorten(output: str, kept: tuple[int, int] | None) -> str:
    """Return the first and the last lines of an output, with … between them. kept: their numbers; None: all lines."""
    lines = output.splitlines(keepends=True)
    if kept is None or len(lines) <= sum(kept) + 1:
        return output
    first, last = kept
    return "".join([*lines[:first], "…\n", *lines[len(lines) - last:]])


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description="Run every command of the tutorial, and renew its outputs.")
    parser.add_argument("work", type=Path, metavar="WORK", help="directory in which to follow the page")
    parser.add_argument("--text", type=Path, metavar="DIRECTORY", help="directory with Multi30k, instead of a download")
    arguments = parser.parse_args()
    reader = Reader(arguments.work.resolve(), arguments.text)
    page = reader.follow(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
