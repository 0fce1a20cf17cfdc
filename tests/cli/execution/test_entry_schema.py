"""Schemas of entries: probing, caching, detecting stale ones, clearing."""

import json
import os

import pytest

from flodl.cli import container, main
from flodl.cli.execution import entry_schema
from flodl.cli.execution.entry_files import fingerprint
from flodl.cli.execution.entry_schema import cache_file, cached_schemas, can_be_asked, load_schema
from flodl.cli.manifest.loader import load
from flodl.core import log
from flodl.core.errors import ManifestError

TOOL = """#!/bin/sh
# knows --fdl-schema
echo asked >> log
echo some words first
cat <<END
{"options": {"mode": {"type": "string", "choices": ["a", "b"]}}, "args": [{"name": "data", "type": "path"}]}
END
"""


@pytest.fixture
def tool(project):
    root = project(
        {"fdl.yml": "commands: {train: }", "train/fdl.yml": "entry: ./tool.sh", "train/tool.sh": TOOL}
    )
    (root / "train/tool.sh").chmod(0o755)
    return root


def manifest(root, name="train"):
    return load(root / name / "fdl.yml", project=root)


def age(path):
    os.utime(path, (1, 1))


def times_asked(root):
    log = root / "train/log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_an_entry_is_asked_once_and_again_after_a_change(tool):
    assert list(load_schema(manifest(tool)).options) == ["mode"]
    age(tool / "train/tool.sh")
    os.utime(tool / "train/fdl.yml")
    assert list(load_schema(manifest(tool)).options) == ["mode"]
    assert times_asked(tool) == 1  # the content counts, not the time stamp
    (tool / "train/tool.sh").write_text(TOOL + "# changed\n")
    age(tool / "train/tool.sh")
    load_schema(manifest(tool))
    assert times_asked(tool) == 2


@pytest.mark.parametrize(
    ("entry", "files", "changed"),
    [
        ("python train.py", {"train.py": "from settings import X", "settings.py": ""}, "settings.py"),
        (
            "python ../src/main.py",
            {"../src/main.py": "import inner.deep", "../src/inner/deep.py": ""},
            "../src/inner/deep.py",
        ),
        (
            "python -m pkg",
            {"pkg/__main__.py": "from .settings import (\n  X,\n)", "pkg/settings.py": ""},
            "pkg/settings.py",
        ),
        (
            "python -m pkg.job",
            {"pkg/job.py": "from pkg import settings", "pkg/__init__.py": "", "pkg/settings.py": ""},
            "pkg/__init__.py",
        ),
        (
            "python -m pkg.job",
            {"pkg/job.py": "from . import settings", "pkg/settings.py": ""},
            "pkg/settings.py",
        ),
        ("./run.sh", {"run.sh": "python job.py $@", "job.py": ""}, "job.py"),
    ],
)
def test_the_fingerprint_includes_imported_files(project, entry, files, changed):
    root = project({"fdl.yml": "", "train/fdl.yml": f"entry: {entry}", "train/other.py": ""})
    for name, text in files.items():
        path = root / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    before = fingerprint(manifest(root))
    (root / "train/other.py").write_text("nobody = 1")
    assert fingerprint(manifest(root)) == before
    (root / "train" / changed).write_text("x = 1")
    assert fingerprint(manifest(root)) != before


def test_a_failed_entry_is_not_asked_at_every_start(tool, monkeypatch, capfd):
    (tool / "train/tool.sh").write_text("#!/bin/sh\n# --fdl-schema\necho asked >> log\nexit 3\n")
    for _ in range(3):
        assert load_schema(manifest(tool)) is None
    assert times_asked(tool) == 1
    log.set_verbosity("verbose")
    load_schema(manifest(tool))
    assert "not asked again" in capfd.readouterr().err
    (tool / "train/tool.sh").write_text(TOOL)
    assert load_schema(manifest(tool)) is not None


def test_a_slow_entry_is_asked_again_when_there_is_more_time(tool):
    (tool / "train/tool.sh").write_text(TOOL.replace("echo some", "sleep 0.4; echo some"))
    assert load_schema(manifest(tool), timeout_s=0.1) is None
    assert load_schema(manifest(tool), timeout_s=0.1) is None
    assert times_asked(tool) == 1
    assert load_schema(manifest(tool)) is not None


def test_a_schema_that_cannot_be_cached_is_reported(tool, capsys):
    (tool / "train/.fdl").write_text("in the way")
    assert main(["train", "--refresh-schema"]) == 0
    assert "not saved, because" in capsys.readouterr().out


def test_an_invalid_cache_is_ignored(tool):
    file = cache_file(manifest(tool))
    file.parent.mkdir(parents=True)
    for content in ("{", '{"options": {"x": {"type": "number"}}}'):
        file.write_text(content)
        assert list(load_schema(manifest(tool)).options) == ["mode"]


@pytest.mark.parametrize(
    ("entry", "files", "asked"),
    [
        ("python train.py", {"train.py": "import torch  # not flodl.cli"}, False),
        ("python train.py", {"train.py": "from flodl.cli import Args"}, True),
        ("python -m job.train", {"job/train.py": "from flodl.cli import Args"}, True),
        ("python -m job", {"job/__main__.py": "# --fdl-schema"}, True),
        ("cargo run --", {}, False),
        ("tool", {}, False),
        ("tool\ncompile: true", {}, True),
    ],
)
def test_only_a_program_that_mentions_the_flag_is_asked(project, entry, files, asked):
    root = project(
        {
            "fdl.yml": "",
            "train/fdl.yml": f"entry: {entry}",
            **{f"train/{name}": text for name, text in files.items()},
        }
    )
    assert can_be_asked(manifest(root)) is asked


def test_the_manifest_can_declare_the_schema(project):
    root = project({"fdl.yml": "", "train/fdl.yml": "entry: tool\nschema: {options: {lr: {type: float}}}"})
    assert list(load_schema(manifest(root)).options) == ["lr"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo trouble >&2; exit 3", "exited with code 3: trouble"),
        ("echo nothing", "did not print a JSON object"),
        ("echo '{\"options\": 3'", "did not print a JSON object"),
        ("echo '{\"opts\": 3}'", "unknown key 'opts'"),
        ("sleep 5", "did not answer within 0.3 s"),
    ],
)
def test_a_failed_refresh_is_explained(tool, capsys, monkeypatch, script, message):
    monkeypatch.setattr(entry_schema, "PROBE_TIMEOUT_S", 0.3)
    (tool / "train/tool.sh").write_text(f"#!/bin/sh\n# --fdl-schema\n{script}\n")
    assert main(["train", "--refresh-schema"]) == 1
    assert message in capsys.readouterr().err
    assert main(["train", "--help"]) == 0  # help works without the schema


def test_a_refresh_reports_the_number_of_options_and_arguments(tool, capsys):
    assert main(["train", "--refresh-schema"]) == 0
    assert "fdl train: 1 options and 1 arguments" in capsys.readouterr().out


def test_with_docker_the_entry_is_asked_in_the_container(project, stand_in, monkeypatch):
    monkeypatch.setattr(container, "inside_container", lambda: False)
    root = project(
        {
            "docker-compose.yml": "services: {}",
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": "entry: tool x\ndocker: dev",
        }
    )
    called = stand_in("docker")
    assert main(["train", "--refresh-schema"]) == 1
    assert called() == [
        str(root), "compose", "run", "--rm", "-e", "FDL_PROJECT_ROOT=/workspace", "dev", "bash", "-c",
        "cd /workspace/train && tool x --fdl-schema",
    ]  # fmt: skip
    (root / "docker-compose.yml").unlink()


def test_a_python_script_is_asked_here_if_its_container_cannot_be(project, monkeypatch):
    monkeypatch.setattr(container, "inside_container", lambda: False)
    script = 'from flodl.cli import Args\nprint(\'{"options": {"lr": {"type": "float"}}}\')\n'
    root = project({"fdl.yml": "entry: python train.py\ndocker: dev", "train.py": script})
    assert list(load_schema(load(root / "fdl.yml")).options) == ["lr"]


def test_without_a_compose_file_docker_cannot_be_asked(project, capsys, monkeypatch):
    monkeypatch.setattr(container, "inside_container", lambda: False)
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": "entry: tool x\ndocker: dev"})
    assert main(["train", "--refresh-schema"]) == 1
    assert "needs a docker-compose.yml" in capsys.readouterr().err


def test_cached_schemas_are_listed_refreshed_and_cleared(tool, capsys):
    assert main(["schema", "list"]) == 0
    assert "No schema is cached" in capsys.readouterr().out
    main(["train", "--refresh-schema"])
    orphan = tool / "old/.fdl/schema-cache/old.json"
    orphan.parent.mkdir(parents=True)
    orphan.write_text("{}")
    hidden = tool / "runs/x/.fdl/schema-cache/x.json"
    hidden.parent.mkdir(parents=True)
    hidden.write_text("{}")
    capsys.readouterr()
    # The manifest of the project is in a parent folder of the orphan, not in its folder.
    assert main(["schema", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "old", "path": "old/.fdl/schema-cache/old.json", "status": "orphan"},
        {"name": "train", "path": "train/.fdl/schema-cache/train.json", "status": "fresh"},
    ]
    (tool / "train/tool.sh").write_text(TOOL + "# changed")
    assert main(["schema", "list"]) == 0
    assert "train                stale" in capsys.readouterr().out

    assert main(["schema", "refresh"]) == 1
    shown = capsys.readouterr()
    assert "train: 1 options, 1 arguments" in shown.out
    assert "1 refreshed, 1 failed." in shown.out
    assert "no longer has an fdl.yml" in shown.err

    assert main(["schema", "clear", "--dry-run"]) == 0
    assert "would delete" in capsys.readouterr().out
    assert main(["schema", "clear", "old"]) == 0
    assert not (tool / "old/.fdl").exists()
    assert main(["schema", "clear", "trian"]) == 1
    assert "Did you mean 'train'" in capsys.readouterr().err
    assert main(["schema", "clear"]) == 0
    assert cached_schemas(tool) == []


def test_listing_schemas_needs_a_project(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["schema", "list"]) == 1
    assert "no fdl.yml found" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("yes", "printed more than 4000000 bytes"),
        ("head -c 300000 /dev/zero | tr '\\0' '[' | sed 's/^/{\"args\": /'", "did not print a JSON object"),
        ("head -c 6000 /dev/zero | tr '\\0' 9 | sed 's/^/{\"args\": /'", "did not print a JSON object"),
        ("sleep 60 & sleep 60", "did not answer within 1 s"),
    ],
    ids=["endless", "deep", "huge number", "slow"],
)
def test_an_entry_that_misbehaves_when_asked_is_an_error(tool, output, message):
    (tool / "train/tool.sh").write_text(f"#!/bin/sh\n# knows --fdl-schema\n{output}\n")
    loaded = manifest(tool)
    with pytest.raises(ManifestError, match=message):
        entry_schema.refresh_schema(loaded, cache_file(loaded), timeout_s=1.0 if "sleep" in output else 10.0)
    assert load_schema(loaded) is None


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"\xff", b'{"schema": ' + b"9" * 5000 + b"}", b"[]", None]
)
def test_a_cache_that_cannot_be_read_is_ignored_and_the_entry_is_asked(tool, content):
    file = cache_file(manifest(tool))
    file.parent.mkdir(parents=True)
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    assert list(load_schema(manifest(tool)).options) == ["mode"]
    assert times_asked(tool) == 1
