"""Inheritance and overlays: which files count, in which order, and what goes wrong."""

import pytest

from flodl.cli.manifest.discovery import find_manifest, manifest_in, overlay_names
from flodl.cli.manifest.document import plain
from flodl.cli.manifest.loader import load
from flodl.core.errors import ManifestError


def test_parents_lie_below_and_overlays_above(project):
    root = project(
        {
            "shared/old.yml": "a: old\nb: old\nc: old\nd: old\n",
            "base.yml": "inherit-from: shared/old.yml\nb: base\nc: base\nd: base",
            "fdl.yml": "inherit-from: base.yml\nc: own\nd: own",
            "ci-base.yml": "d: ci-base\ne: ci-base",
            "fdl.ci.yml": "inherit-from: ci-base.yml\ne: ci",
        }
    )
    assert plain(load(root / "fdl.yml").document) == {"a": "old", "b": "base", "c": "own", "d": "own"}
    expected = {"a": "old", "b": "base", "c": "own", "d": "ci-base", "e": "ci"}
    assert plain(load(root / "fdl.yml", overlay="ci").document) == expected


def test_a_file_that_both_inherit_from_counts_once_at_its_first_place(project):
    root = project(
        {
            "base.yml": "a: base\nb: base",
            "fdl.yml": "inherit-from: base.yml\na: own",
            "fdl.ci.yml": "inherit-from: base.yml\nb: ci",
        }
    )
    assert plain(load(root / "fdl.yml", overlay="ci").document) == {"a": "own", "b": "ci"}


def test_a_parent_is_found_from_where_the_file_really_is(project, tmp_path):
    root = project({"real/fdl.yml": "inherit-from: parent.yml", "real/parent.yml": "a: 1"})
    (root / "link").mkdir()
    (root / "link" / "fdl.yml").symlink_to(root / "real" / "fdl.yml")
    assert load(root / "link" / "fdl.yml").document.value("a") == 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"fdl.yml": "inherit-from: fdl.yml"}, r"goes in a cycle: .*fdl\.yml → .*fdl\.yml"),
        (
            {
                "fdl.yml": "inherit-from: a.yml",
                "a.yml": "inherit-from: b.yml",
                "b.yml": "inherit-from: a.yml",
            },
            r"cycle: [^ ]*a\.yml → [^ ]*b\.yml → [^ ]*a\.yml",
        ),
        (
            {"fdl.yml": "# words\ninherit-from: [a]"},
            r"fdl\.yml:2: inherit-from must be a string path, not a list",
        ),
        ({"fdl.yml": "inherit-from: 3"}, "must be a string path, not a number"),
        ({"fdl.yml": "inherit-from: ''"}, "must be a non-empty path"),
        (
            {"fdl.yml": "inherit-from: gone.yml"},
            r"fdl\.yml:1: cannot resolve inherit-from target 'gone\.yml'",
        ),
    ],
)
def test_what_cannot_be_inherited_is_said(project, files, message):
    root = project(files)
    with pytest.raises(ManifestError, match=message):
        load(root / "fdl.yml")


def test_nothing_is_inherited_from_null(project):
    root = project({"fdl.yml": "inherit-from:\na: 1"})
    assert plain(load(root / "fdl.yml").document) == {"a": 1}


def test_an_overlay_that_is_asked_for_must_be_there(project):
    root = project({"fdl.yml": "a: 1", "fdl.prod.yml": ""})
    with pytest.raises(
        ManifestError, match=r"FDL_ENV asks for the environment 'prd'.*fdl\.prd\.yml\. Did you mean 'prod'"
    ):
        load(root / "fdl.yml", overlay="prd", source="FDL_ENV")


def test_in_one_folder_yaml_comes_before_yml_before_json_before_examples(project):
    root = project({"fdl.yml.dist": "", "fdl.json": "{}"})
    assert manifest_in(root).name == "fdl.json"
    (root / "fdl.yml").touch()
    assert manifest_in(root).name == "fdl.yml"
    (root / "fdl.yaml").touch()
    assert manifest_in(root).name == "fdl.yaml"


def test_an_example_stands_in_for_a_manifest_that_is_not_there(project):
    root = project({"inner/fdl.yml.example": "", "fdl.yml": ""})
    assert find_manifest(root / "inner").name == "fdl.yml.example"
    (root / "inner/deep").mkdir()
    assert find_manifest(root / "inner/deep").parent == root / "inner"


def test_overlays_are_listed_once_and_sorted(project):
    names = [
        "fdl.yml",
        "fdl.prod.yml",
        "fdl.ci.json",
        "fdl.ci.yaml",
        "fdl.yml.example",
        "fdl.yml.bak",
        "fdl..yml",
    ]
    root = project(dict.fromkeys(names, ""))
    assert overlay_names(root / "fdl.yml") == ["ci", "prod"]
