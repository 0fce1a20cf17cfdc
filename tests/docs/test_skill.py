"""The skill for coding assistants is what the porting guide generates, and its links work."""

import importlib.util
import re
from pathlib import Path

import pytest

from flodl.cli.skill import read_files

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def writer():
    spec = importlib.util.spec_from_file_location("write_skill", DOCS / "write_skill.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_skill_matches_the_guide(writer):
    written = {name: content.decode() for name, content in read_files().items()}
    assert written == writer.skill_files(), "run docs/write_skill.py"


def test_every_example_of_the_guide_is_in_the_skill(writer):
    guide = (DOCS / "from-pytorch.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", guide, flags=re.DOTALL | re.MULTILINE)
    text = "".join(writer.skill_files().values())
    assert len(blocks) > 20
    assert not [block for block in blocks if block not in text]


def test_links_and_named_files_of_the_skill_exist(writer):
    files = writer.skill_files()
    for name, text in files.items():
        assert "<t" not in re.sub(r"`[^`]*`", "", text)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            target = (Path(name).parent / link).as_posix()
            assert link.startswith("https://") or target in files, f"{name}: {link}"
    named = set(re.findall(r"`(references/[^`]+)`", files["SKILL.md"]))
    assert {*named, "SKILL.md"} == set(files)
