"""Documents match the code: blocks run, outputs are real, links and commands exist."""

import contextlib
import doctest
import importlib
import io
import random
import re
import traceback
from dataclasses import dataclass
from pathlib import Path

import click
import numpy
import pytest
import torch

from flodl import FlowBuilder, Graph, set_verbosity
from flodl.cli.commands import SUMMARIES
from flodl.core.log import verbosity
from flodl.graph.build import LoopBuilder, MapBuilder

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("src/flodl/*/README.md")),
]
PER_DOCUMENT = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
NOT_RUN = re.compile(r"<!-- not run: (.*?) ?-->")
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass
class Block:
    """One fenced block: language, first line, text, why it is not run, and the output shown below it."""

    language: str
    line: int
    text: str = ""
    not_run: str = ""
    output: str = ""


def read_blocks(text: str) -> list[Block]:
    """Return the fenced blocks; a `text` block right below a `python` block is its output."""
    blocks: list[Block] = []
    inside, between = False, ""
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.startswith("```"):
            if inside:
                blocks[-1].text += line
            else:
                between += line
            continue
        inside = not inside
        if inside:
            why = NOT_RUN.search(between.rstrip().rsplit("\n", 1)[-1]) if between.strip() else None
            shows_output = line.strip() == "```text" and not between.strip()
            blocks.append(Block(line[3:].strip(), number, not_run=why.group(1) if why else ""))
            if shows_output and len(blocks) > 1 and blocks[-2].language == "python":
                blocks[-1].language = "output"
        elif blocks[-1].language == "output":
            blocks[-2].output = blocks[-1].text
        between = ""
    assert not inside, f"the block in line {blocks[-1].line} is not closed"
    return blocks


def run_blocks(name: str, text: str) -> None:
    """Run the Python blocks of a document in one namespace, and compare their output with what is shown."""
    namespace = {"__name__": "__main__"}
    for block in read_blocks(text):
        if block.language != "python" or block.not_run:
            continue
        # Empty lines in front, so that a traceback shows the line of the document.
        code = compile("\n" * block.line + block.text, name, "exec", dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        checker = doctest.OutputChecker()
        if block.output and not checker.check_output(block.output, printed.getvalue(), LOOSE):
            difference = checker.output_difference(
                doctest.Example("", block.output), printed.getvalue(), LOOSE
            )
            raise AssertionError(f"{name}, the block in line {block.line}:\n{difference}")


def prose(text: str) -> str:
    """Return a document without fenced blocks and inline `code`."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def headings(text: str) -> set[str]:
    """Return the anchors of a document: words in lower case, joined by hyphens."""
    found = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.M), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in found}


@pytest.fixture
def clean_process(tmp_path, monkeypatch):
    """Provide an empty working directory and a fixed seed, and restore the global state of the process."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads are slower for tiny tensors
    python_state, numpy_state = random.getstate(), numpy.random.get_state()
    level = verbosity()
    set_verbosity("normal")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield tmp_path
    torch.set_num_threads(threads)
    random.setstate(python_state)
    numpy.random.set_state(numpy_state)
    set_verbosity(level)


@pytest.mark.slow
@PER_DOCUMENT
def test_every_block_runs_and_prints_what_is_shown(document, clean_process):
    run_blocks(str(document.relative_to(ROOT)), document.read_text(encoding="utf-8"))


@PER_DOCUMENT
def test_every_link_has_an_existing_file_and_heading(document):
    text = prose(document.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    for link in links:
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = document.parent / file if file else document
        assert target.exists(), f"{link} does not exist"
        if anchor:
            assert anchor in headings(target.read_text(encoding="utf-8")), f"{link}: no such heading"


@PER_DOCUMENT
def test_every_fdl_command_exists(document):
    text = document.read_text(encoding="utf-8")
    shell = "".join(block.text for block in read_blocks(text) if block.language == "bash")
    inline = re.findall(r"`((?:\./)?fdl [^`]+)`", text)
    for words in [line.split("#")[0].split() for line in [*shell.splitlines(), *inline]]:
        if not words or words[0] not in ("./fdl", "fdl") or len(words) == 1 or words[1].startswith("-"):
            continue
        assert words[1] in SUMMARIES, f"{' '.join(words)}: fdl has no such command"
        if words[1] == "test":  # its arguments are pytest's
            continue
        command = importlib.import_module(f"flodl.cli.commands.{words[1].replace('-', '_')}").command
        while isinstance(command, click.Group) and len(words) > 2 and words[2] in command.commands:
            command, words = command.commands[words[2]], words[1:]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert not [word for word in words[2:] if word[0] == "-" and word != "-" and word not in known]


@PER_DOCUMENT
def test_a_block_that_is_not_run_says_why(document):
    text = document.read_text(encoding="utf-8")
    assert text.count("<!-- not run") == sum(bool(block.not_run) for block in read_blocks(text))


def test_every_path_in_the_contributors_map_exists():
    rows = re.findall(r"^\| .*", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.M)
    paths = [path for row in rows for path in re.findall(r"`((?:src|tests|docs|benchmarks)/[^`\s]+)`", row)]
    planned = ("src/flodl/hf/", "src/flodl/distributed")
    assert len(rows) == 12
    assert len(paths) > 30
    assert not [path for path in paths if not (path.startswith(planned) or (ROOT / path).exists())]


def test_the_method_table_has_every_method_of_the_builder():
    methods = {
        name
        for builder in (FlowBuilder, LoopBuilder, MapBuilder)
        for name in vars(builder)
        if not name.startswith("_")
    }
    rows = re.findall(r"^\| `\.?(\w+)\(", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.M)
    assert sorted(rows) == sorted({*methods, "FlowBuilder"})


def test_every_public_method_of_a_graph_is_documented():
    plumbing = {"accepted_refs", "add_module", "forward", "published_values", "target"}
    own = [part for part in Graph.__mro__ if part.__module__.startswith("flodl.graph")]
    names = {name for part in own for name in vars(part) if not name.startswith("_")} - plumbing
    text = "".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    assert not sorted(name for name in names if not re.search(rf"[.`]{name}\b", text))


def test_the_diagram_in_the_readme_is_up_to_date(clean_process):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    run_blocks("README.md", text)
    drawn = next(clean_process.glob("*.svg")).read_text(encoding="utf-8")
    shown = (ROOT / "docs/images/readme-model.svg").read_text(encoding="utf-8")
    assert re.findall(r"<text[^>]*>(.*?)</text>", shown) == re.findall(r"<text[^>]*>(.*?)</text>", drawn)


def test_an_outdated_output_is_detected():
    with pytest.raises(AssertionError, match="the block in line 3"):
        run_blocks("page.md", "# A page\n\n```python\nprint(1)\n```\n\n```text\n2\n```\n")


def test_blocks_share_a_namespace_and_tracebacks_name_the_line_of_the_document():
    with pytest.raises(NameError) as caught:
        run_blocks("page.md", "```python\nx = 1\n```\n\ntext\n\n```python\nx\ny\n```\n")
    last = traceback.extract_tb(caught.tb)[-1]
    assert (last.filename, last.lineno) == ("page.md", 9)


def test_a_block_marked_as_not_run_is_skipped():
    run_blocks("page.md", "<!-- not run: it would wait for a key -->\n```python\n1 / 0\n```\n")
