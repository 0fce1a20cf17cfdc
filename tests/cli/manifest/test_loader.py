"""Loading manifests: inheritance and overlays, their order, and errors."""

import pytest

from flodl.cli.manifest.document import plain
from flodl.cli.manifest.loader import load
from flodl.cli.manifest.lookup import resolve_target
from flodl.core.errors import ManifestError


def test_a_manifest_overrides_its_parents_and_an_overlay_overrides_the_manifest(project):
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


def test_a_file_that_both_inherit_from_is_applied_once_at_its_first_position(project):
    root = project(
        {
            "base.yml": "a: base\nb: base",
            "fdl.yml": "inherit-from: base.yml\na: own",
            "fdl.ci.yml": "inherit-from: base.yml\nb: ci",
        }
    )
    assert plain(load(root / "fdl.yml", overlay="ci").document) == {"a": "own", "b": "ci"}


def test_a_tilde_in_inherit_from_and_in_path_is_the_home_folder(project, monkeypatch):
    root = project(
        {
            "home/base.yml": "description: base",
            "home/tools/fdl.yml": "description: tools",
            "fdl.yml": "inherit-from: ~/base.yml\ncommands: {tools: {path: ~/tools}}",
        }
    )
    monkeypatch.setenv("HOME", str(root / "home"))
    manifest = load(root / "fdl.yml")
    assert manifest.describe() == "base"
    assert resolve_target(manifest, "tools", ()).manifest.describe() == "tools"


def test_a_parent_is_resolved_relative_to_the_real_file(project, tmp_path):
    root = project({"real/fdl.yml": "inherit-from: parent.yml", "real/parent.yml": "a: 1"})
    (root / "link").mkdir()
    (root / "link" / "fdl.yml").symlink_to(root / "real" / "fdl.yml")
    assert load(root / "link" / "fdl.yml").document.value("a") == 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"fdl.yml": "inherit-from: fdl.yml"}, r"forms a cycle: .*fdl\.yml → .*fdl\.yml"),
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
def test_an_invalid_inherit_from_is_an_error(project, files, message):
    root = project(files)
    with pytest.raises(ManifestError, match=message):
        load(root / "fdl.yml")


def test_a_long_chain_of_parents_is_an_error_with_the_line_where_it_is_too_long(project):
    files = {f"f{n}.yml": f"inherit-from: f{n + 1}.yml" for n in range(2000)}
    root = project({**files, "f2000.yml": "", "fdl.yml": "description: x\ninherit-from: f0.yml"})
    with pytest.raises(ManifestError, match=r"f30\.yml:1: inherit-from continues through more than 32 files"):
        load(root / "fdl.yml")
    assert load(root / "f1980.yml").path.name == "f1980.yml"


def test_inherit_from_null_inherits_nothing(project):
    root = project({"fdl.yml": "inherit-from:\na: 1"})
    assert plain(load(root / "fdl.yml").document) == {"a": 1}


def test_a_requested_overlay_must_exist(project):
    root = project({"fdl.yml": "a: 1", "fdl.prod.yml": ""})
    with pytest.raises(
        ManifestError, match=r"FDL_ENV asks for the environment 'prd'.*fdl\.prd\.yml\. Did you mean 'prod'"
    ):
        load(root / "fdl.yml", overlay="prd", source="FDL_ENV")


@pytest.mark.parametrize("parent", ["fdl.ci.yml", "other.yml"])
def test_an_overlay_that_inherits_from_itself_is_an_error(project, parent):
    root = project(
        {
            "fdl.yml": "a: 1",
            "fdl.ci.yml": f"inherit-from: {parent}",
            "other.yml": "inherit-from: fdl.ci.yml",
        }
    )
    with pytest.raises(ManifestError, match=r"fdl\.ci\.yml.* → .*fdl\.ci\.yml\. Remove one of them"):
        load(root / "fdl.yml", overlay="ci")
