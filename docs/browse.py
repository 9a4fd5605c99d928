"""Look at each page of the built site in Chromium: ``python docs/browse.py [FOLDER]``, of build/docs by default.

At the width of a desktop and of a phone, light and dark, nothing may reach over the page's sides or be cut, each
picture and script has to load without an error in the console, and each link inside the site has to lead to a page and
a place of it. What is wrong is printed, and the exit status is then 1. ``--pictures FOLDER`` keeps what each page looks
like.

Needs a Chromium, as Debian's package ``chromium-headless-shell`` has it; it is spoken to through a pipe.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
FLAGS = (
    "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--no-first-run",
)  # fmt: skip
WIDTHS, SCHEMES = (1280, 390), ("light", "dark")

LINKS = """({
    links: [...document.links].map(a => a.href).filter(href => href.startsWith('file:')),
    places: [...document.querySelectorAll('[id]')].map(e => e.id),
    empty: [...document.images].filter(i => i.loading != 'lazy' && !i.naturalWidth).map(i => i.src),
})"""
# What scrolls by itself, as code and wide tables do, may be wider than the screen; on a desktop code has to fit.
SIDES = """(() => {
    const found = [], root = document.scrollingElement, name = e =>
        `<${e.tagName.toLowerCase()} class="${e.className}"> '${e.textContent.trim().slice(0, 40)}'`;
    const scrolls = e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
    if (root.scrollWidth > innerWidth) found.push(`the page is ${root.scrollWidth} pixels wide`);
    const look = e => {
        const box = e.getBoundingClientRect(), style = getComputedStyle(e);
        if (box.width < 2 || style.visibility == 'hidden') return;
        if (box.right > innerWidth + 1 || box.left < -1) { found.push(`${name(e)} reaches over the side`); return; }
        if (e instanceof SVGElement || scrolls(e)) return;
        if (['hidden', 'clip'].includes(style.overflowX) && e.scrollWidth > e.clientWidth + 1)
            found.push(`${name(e)} is cut`);
        for (const child of e.children) look(child);
    };
    look(document.querySelector('article') ?? document.body);
    if (innerWidth > 1200) {
        const contents = document.querySelector('.toc-drawer:not(.no-toc)')?.getBoundingClientRect();
        if (contents && contents.right > innerWidth + 1) found.push('the contents are not visible');
        for (const code of document.querySelectorAll('.highlight pre'))
            if (code.scrollWidth > code.clientWidth + 1) found.push(`${name(code)} has lines that are cut`);
    }
    return found;
})()"""


class Browser:
    """One tab of a Chromium, by the DevTools protocol."""

    def __init__(self, program: str) -> None:
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()

        def at_three_and_four() -> None:
            # Copies first: one of the two may be 3 or 4 itself.
            read, write = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"],
            preexec_fn=at_three_and_four,
            close_fds=False,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
        self._rest, self._numbers = b"", itertools.count(1)
        self._session: dict[str, str] = {}
        self.told: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def _messages(self) -> Iterator[dict[str, Any]]:
        while True:
            message, found, rest = self._rest.partition(b"\0")
            if found:
                self._rest = rest
                yield json.loads(message)
            elif read := os.read(self._in.fileno(), 1 << 20):
                self._rest += read
            else:
                raise RuntimeError("the browser ended; start it by hand to see why")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command; what is told meanwhile is added to ``told``."""
        number = next(self._numbers)
        self._out.write(json.dumps({"id": number, "method": method, "params": params} | self._session).encode() + b"\0")
        self._out.flush()
        for message in self._messages():
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self.told.append(message)
        raise AssertionError("messages do not end")

    def open(self, address: str) -> None:
        self.told.clear()
        if failed := self.ask("Page.navigate", url=address).get("errorText"):
            raise RuntimeError(f"{address}: {failed}")
        if not any(message["method"] == "Page.loadEventFired" for message in self.told):
            for message in self._messages():
                self.told.append(message)
                if message["method"] == "Page.loadEventFired":
                    return

    def show(self, width: int, scheme: str) -> None:
        """The page as a screen of that width, in pixels, has it, in a scheme: ``light`` or ``dark``."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, code: str) -> Any:
        return self.ask("Runtime.evaluate", expression=code, returnByValue=True)["result"].get("value")

    def errors(self) -> list[str]:
        """What the console has since the page was opened."""
        found = []
        for message in self.told:
            params = message.get("params", {})
            if message["method"] == "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                found.append(details.get("exception", {}).get("description", details["text"]))
            elif message["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())
            elif message["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
                found.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        return found

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._out.close()
        self._in.close()
        self._folder.cleanup()


def looks(browser: Browser, page: Path, name: str, pictures: Path | None) -> Iterator[str]:
    """What is wrong with the looks of the open page."""
    for width, scheme in itertools.product(WIDTHS, SCHEMES):
        browser.show(width, scheme)
        yield from (f"{name} at {width}, {scheme}: {what}" for what in browser.run(SIDES))
        if pictures:
            shot = browser.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
            (pictures / f"{name.replace('/', '-')}-{width}-{scheme}.png").write_bytes(base64.b64decode(shot))


def browse(site: Path, program: str, pictures: Path | None = None, only: Sequence[str] = ()) -> list[str]:
    """What is wrong with the pages of a site; ``only`` those that are named, without ``.html``."""
    wrong: list[str] = []
    links: dict[str, list[str]] = {}
    places: dict[str, set[str]] = {}
    browser = Browser(program)
    try:
        for page in sorted(site.rglob("*.html")):
            name = page.relative_to(site).with_suffix("").as_posix()
            if only and name not in only:
                continue
            browser.open(page.as_uri())
            about = browser.run(LINKS)
            links[name], places[page.as_uri()] = about["links"], set(about["places"])
            wrong += [f"{name}: {source} is not a picture" for source in about["empty"]]
            wrong += looks(browser, page, name, pictures)
            wrong += [f"{name}: the console says {error}" for error in browser.errors()]
    finally:
        browser.close()
    for name, leads in links.items():
        for address, place in map(urldefrag, dict.fromkeys(leads)):
            if not Path(unquote(address.removeprefix("file://"))).is_file():
                wrong.append(f"{name}: a link leads to {address}, which is not there")
            elif place and address in places and unquote(place) not in places[address]:
                wrong.append(f"{name}: a link leads to {address}, which has no place #{place}")
    if not links:
        raise ValueError(f"{site} has none of the pages {', '.join(only) or '*.html'}; build it with sphinx first")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, nargs="?", default=Path("build/docs"), help="folder of the built site")
    parser.add_argument("--pictures", type=Path, help="folder for pictures of the pages")
    parser.add_argument("--only", nargs="+", default=[], help="pages, such as index or api/kernels")
    chosen = parser.parse_args()
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        sys.exit(f"no browser found ({', '.join(BROWSERS)}): apt-get install chromium-headless-shell")
    if chosen.pictures:
        chosen.pictures.mkdir(parents=True, exist_ok=True)
    wrong = browse(chosen.site.resolve(), program, chosen.pictures, chosen.only)
    print(*wrong, f"{len(wrong)} found", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
