"""Phrases and file names that a reader would have to translate must not come back.

Where a phrase is right after all, write around it: the list catches the habit, not every single use.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "flodl"
SUFFIXES = {".py", ".md", ".html", ".js", ".css", ".yml"}

# Folders and files that are not rewritten yet. Remove a line when its folder is done; the list ends empty.
NOT_YET: list[str] = []

# A pattern, in texts whose white space is reduced to single spaces, and what to write instead.
PHRASES = {
    r"(?<!there )\bis no (?!longer|more|less|\w+er than)[a-z]+": "X is not a Y; expected Y, got X",
    r"(?<!there )\bare no (?!longer|more|less|\w+er than)[a-z]+": "X are not Y",
    r"\b(mend|mends|mended|mending)\b": "fix",
    r"\b(go|goes|went|going) on\b": "continue",
    r"\b(is|are|was|were|be|been) told\b": "report, pass, receive",
    r"\bcomes? of (it|that|this)\b": "the result",
    r"\b(may|have|has) come to\b": "name the result",
    r"\bof before\b": "previous, earlier",
    r"\b(nothing|has|have) behind (it|them)\b": "say what is missing",
    r"\bwherewith\b": "with which",
    r"\bthe one of\b": "name it: the user's store",
    r"\banew\b": "again, from scratch",
    r"\bbeside\b": "next to, in addition to, in the background",
    r"\bby (its|their) place\b": "by index, by position",
    r"\bthe former\b": "name it",
    r"\bso many\b": "this number of",
    r"\bof one's own\b": "your own, custom",
    r"\botherwise than\b": "differs from",
    r"\btwo truths\b": "two bools",
    r"\bhears? (of|that)\b": "receives, is notified",
    r"\blets? go of\b": "release",
    r"\bTo go back to there\b": "there is ... to go back to",
    r"\bof the hook \w+ there were\b": "subject, verb, object",
    r"\bsay whether\b": "return whether",
    r'"""Give\b': "Return",
    r"\bWhich [\w ]+ has `": "does `fdl` have",
    r"\bwindows? of accumulation\b": "accumulation window",
    r"\bnumber from [01] up\b": "an integer of at least 1",
    r"[.:;] Give (a|an|one|what|integers)\b": "Pass",
    r"\b(is|was) given a \{": "got a",
    r"(?<!fit )\bon the disk\b(?! of)": "on disk",
    r"\bdata (are|were)\b": "data is",
    r"\bdata sets?\b": "dataset",
    r"\b(has|have) precedence\b": "takes precedence",
    r"\b(batch|value|result) is at hand\b": "is available",
    r"\bwhat (it|the run|a run) (came|comes) to\b": "the outcome",
    r"\bweighs as\b": "counts as",
    r"\bsearched (in|as)\b": "looked up in",
    r"\bwherever (it|they) sits?\b": "wherever it is",
    r"\ban? \{type\(": "{a_type(value)}, which chooses between a and an",
    r"--[a-z]+- [a-z]": "an option that is not split at a hyphen",
    r"(?<!aria-)\b\w*(colour|behaviour|favour|labelled\b|neighbour|licence|quantis|normalis)\w*": "color",
}
# The same for the names of tests, in the folders that were read twice.
TEST_FOLDERS = ["faults", "graph", "numerics", "observe", "optim", "train"]
TEST_NAMES = {
    r"_(is|are)_(said|told)(_|$)": "is_reported, raises",
    r"_(goes|go|gone)_on(_|$)": "continues",
    r"(?<!there)_(is|are)_no_(?!longer_|more_)": "is_not_a",
    r"(^test|_who)_(who|nobody)_": "name what happens",
    r"_(anew|beside|in_vain|of_before|ones_own|heard_of|hears_of|lets_go)(_|$)": "again, next to, custom",
    r"_(put|come|comes|gives|given)_back(_|$)": "is_restored",
    r"_(names|name|code|path)_of_(its|their)_own(_|$)": "has_its_own_name",
    r"_(is|are)_(left_alone|passed_over|looked_at|as_before)(_|$)": "is_unchanged, is_skipped, is_checked",
}
ODD_NAMES = {
    "another", "beside", "body", "calling", "counting", "ends", "exact", "feeding", "footing", "ground",
    "handing", "holding", "keeping", "leaving", "nudge", "reach", "room", "salvage", "stillness",
    "surroundings", "tally", "telling", "untouched", "whole",
}  # fmt: skip


def is_done(path: Path) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return not any(name == skipped or name.startswith(f"{skipped}/") for skipped in NOT_YET)


def texts() -> list[Path]:
    found = [path for folder in ("src", "docs", "examples") for path in sorted((ROOT / folder).rglob("*"))]
    found += [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    return [
        path for path in found if path.suffix in SUFFIXES and "vendor" not in path.parts and is_done(path)
    ]


def flattened(text: str) -> str:
    """Return the text as one line, with comments and string literals that span several lines joined."""
    joined = re.sub(r'(?<!")"\s*\n\s*[rf]*"(?!")', "", text)
    return re.sub(r"\s+(?:(?:#|//) )?", " ", joined)


def uses(phrase: str, text: str) -> list[str]:
    pattern = re.compile(phrase, re.IGNORECASE if phrase[0] != '"' else 0)
    return [text[max(0, match.start() - 40) : match.end() + 40] for match in pattern.finditer(text)]


@pytest.fixture(scope="module")
def contents() -> dict[str, str]:
    return {
        path.relative_to(ROOT).as_posix(): flattened(path.read_text(encoding="utf-8")) for path in texts()
    }


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_does_not_come_back(phrase, contents):
    found = [f"{name}: … {use} …" for name, text in contents.items() for use in uses(phrase, text)]
    assert not found, f"write {PHRASES[phrase]!r} instead:\n" + "\n".join(found)


@pytest.mark.parametrize("phrase", TEST_NAMES)
def test_names_of_tests_are_plain(phrase):
    files = [path for folder in TEST_FOLDERS for path in sorted((ROOT / "tests" / folder).rglob("test_*.py"))]
    names = [
        name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    ]
    odd = [name for name in names if re.search(phrase, name)]
    assert not odd, f"write {TEST_NAMES[phrase]!r} instead"


def test_file_names_describe_contents():
    odd = [path for path in sorted(SOURCE.rglob("*.py")) if path.stem in ODD_NAMES and is_done(path)]
    assert not odd


def test_the_list_of_unfinished_folders_is_not_stale():
    assert [name for name in NOT_YET if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "text",
    [
        "'gpu' is no device",
        "The run goes\n    on with the next batch",
        'f"the run goes "\n    f"on"',
        "# what\n    # comes of\n    # that",
        '"""Give the shape."""',
        '"""Say whether it fits."""',
    ],
)
def test_odd_sentences_are_found(text):
    assert [phrase for phrase in PHRASES if uses(phrase, flattened(text))]


@pytest.mark.parametrize(
    "text",
    ["there is no device", "There is\n  no device", "it is no longer used", "min is no higher than base"],
)
def test_natural_sentences_pass(text):
    assert not [phrase for phrase in PHRASES if uses(phrase, flattened(text))]
