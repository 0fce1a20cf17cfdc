"""`fdl install`: an environment in the user's store, and a launcher in a folder of PATH."""

import json
import os
import subprocess

import pytest

import flodl
from flodl.cli import main
from flodl.cli.machine.store import RECORD, Store

from .tiny_wheels import TORCH, make_wheel

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the launcher is a shell script")

PROGRAM = """#!/bin/sh
echo "fdl of {build}" "$@"
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A user without GPUs: the home folder, the store and an empty working directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "store"))
    monkeypatch.setenv("PATH", f"{tmp_path}/.local/bin:/usr/bin:/bin")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def add_build(place, build, *, version=flodl.__version__, requirement="flodl==9"):
    """Create the environment of an installed build, with a small program in place of its fdl."""
    folder = place / "store/torch" / build
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/fdl").write_text(PROGRAM.format(build=build))
    (folder / "bin/fdl").chmod(0o755)
    record = {"build": build, "torch": "2.13.0", "flodl": version, "requirement": [requirement]}
    (folder / RECORD).write_text(json.dumps(record))


def install(*arguments):
    return main(["install", "--flodl", "flodl==9", *arguments])


def run(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True)


def test_the_launcher_starts_the_fdl_of_the_active_build(place, capsys):
    for build in ("cpu", "cu130"):
        add_build(place, build)
    Store(place / "store").activate("cu130")
    assert install() == 0
    launcher = place / ".local/bin/fdl"
    assert f"Wrote {launcher}." in capsys.readouterr().out
    assert run(launcher, "a b", "--c").stdout == "fdl of cu130 a b --c\n"
    assert main(["setup", "--use", "cpu"]) == 0
    assert run(launcher).stdout == "fdl of cpu\n"


def test_a_second_call_changes_nothing(place, capsys):
    add_build(place, "cpu")
    Store(place / "store").activate("cpu")
    install()
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    capsys.readouterr()
    assert install("--json") == 0
    assert json.loads(capsys.readouterr().out)["changed"] is False
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


def test_without_a_build_the_dry_run_shows_every_command_and_writes_nothing(place, capsys):
    assert install("--build", "cpu", "--dry-run", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [command[1:3] for command in found["commands"]] == [["-m", "venv"], ["-m", "pip"], ["-m", "pip"]]
    assert found["commands"][-1][-1] == "flodl==9"
    assert found["installed"] is False
    assert sorted(path.name for path in place.iterdir()) == ["work"]


@pytest.mark.parametrize(("version", "requirement"), [("0.0.1", "flodl==9"), (flodl.__version__, "flodl==8")])
def test_a_different_flodl_is_updated_and_its_torch_stays(place, capsys, version, requirement):
    add_build(place, "cpu", version=version, requirement=requirement)
    Store(place / "store").activate("cpu")
    assert install("--dry-run") == 0
    shown = capsys.readouterr().out.splitlines()
    python = f"{place}/store/torch/cpu/bin/python"
    pip = f"{python} -m pip install --no-input --disable-pip-version-check"
    assert shown == [f"{pip} --upgrade flodl==9", f"Would write {place}/.local/bin/fdl."]


def test_a_folder_outside_path_is_reported_with_the_line_to_add(place, monkeypatch, capsys):
    add_build(place, "cpu")
    Store(place / "store").activate("cpu")
    assert install("--to", "my tools") == 0
    shown = capsys.readouterr().out
    assert f"{place}/work/my tools is not on PATH" in shown
    assert f"~/.bashrc: export PATH='{place}/work/my tools':\"$PATH\"" in shown
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert install("--to", "my tools") == 0
    assert "fish_add_path" in capsys.readouterr().out


def test_another_fdl_that_comes_first_is_reported(place, monkeypatch, capsys):
    add_build(place, "cpu")
    Store(place / "store").activate("cpu")
    (place / "other").mkdir()
    (place / "other/fdl").write_text("#!/bin/sh\n")
    (place / "other/fdl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}/other:{place}/.local/bin:/usr/bin:/bin")
    assert install() == 0
    assert f"a shell starts {place}/other/fdl instead" in capsys.readouterr().out


def test_a_program_of_someone_else_is_replaced_only_with_force(place, capsys):
    add_build(place, "cpu")
    Store(place / "store").activate("cpu")
    (place / ".local/bin").mkdir(parents=True)
    mine = place / "mine"
    mine.write_text("mine")
    (place / ".local/bin/fdl").symlink_to(mine)
    assert install() == 1
    assert "was not written by `fdl install`" in capsys.readouterr().err
    assert main(["install", "--uninstall"]) == 1
    assert (place / ".local/bin/fdl").is_symlink()
    Store(place / "store").activate("cpu")
    assert install("--force", "--dry-run") == 0


def test_uninstall_removes_the_launcher_and_keeps_builds(place, capsys):
    add_build(place, "cpu")
    Store(place / "store").activate("cpu")
    install()
    assert main(["install", "--uninstall"]) == 0
    shown = capsys.readouterr().out
    assert "Builds of torch stay" in shown
    assert "fdl setup --remove NAME" in shown
    assert not (place / ".local/bin/fdl").exists()
    assert Store(place / "store").installed() == ["cpu"]
    assert main(["install", "--uninstall"]) == 0
    assert "There is no launcher" in capsys.readouterr().out


def test_check_shows_what_is_installed(place, capsys):
    assert main(["install", "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["installed"], found["launcher"]) == (None, None)
    assert "To install it: fdl install" in found["problem"]
    add_build(place, "cpu", version="0.0.1")
    Store(place / "store").activate("cpu")
    install("--dry-run")
    capsys.readouterr()
    assert main(["install", "--check"]) == 0
    assert "installed:    0.0.1" in capsys.readouterr().out


def test_a_launcher_without_its_build_says_what_to_do(place):
    add_build(place, "cpu")
    Store(place / "store").activate("cpu")
    install()
    Store(place / "store").activate(None)
    done = run(place / ".local/bin/fdl")
    assert done.returncode == 1
    assert "has no active build of torch with flodl.\nRun `./fdl install`" in done.stderr


def test_dev_needs_a_checkout(place, tmp_path, monkeypatch, capsys):
    info = tmp_path / "flodl-3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flodl\nVersion: 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["install", "--dev"]) == 1
    assert (
        "--dev needs a checkout of flodl, and this flodl was installed as flodl==3" in capsys.readouterr().err
    )
    url = {"url": (tmp_path / "work").as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(url))
    for arguments, expected in ((["--dev"], ["--editable"]), ([], [])):
        assert main(["install", "--build", "cpu", "--dry-run", "--json", *arguments]) == 0
        last = json.loads(capsys.readouterr().out)["commands"][-1]
        assert last[6:] == [*expected, str(tmp_path / "work")]


@pytest.fixture
def wheels(place, monkeypatch):
    """Tiny wheels of torch and flodl, and a pip that reaches nothing else."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    make_wheel(place / "wheels", "torch", "2.13.0+cpu", {"torch/__init__.py": TORCH})
    for version in ("8", "9"):
        program = f"__version__ = {version!r}\ndef main():\n    print('fdl', __version__)\n"
        entry = "[console_scripts]\nfdl = flodl:main\n"
        files = {"flodl/__init__.py": program, "INFO/entry_points.txt": entry}
        make_wheel(place / "wheels", "flodl", version, files)
    return str(place / "wheels")


@pytest.mark.slow
def test_a_real_pip_installs_and_updates_it(place, wheels, capsys):
    """Takes seconds: real venv and pip, with tiny wheels."""
    shared = ["--build", "cpu", "--find-links", wheels, "--yes"]
    launcher = place / ".local/bin/fdl"
    assert main(["install", "--flodl", "flodl==8", *shared]) == 0
    assert run(launcher).stdout == "fdl 8\n"
    assert main(["install", "--update", *shared]) == 0
    assert run(launcher).stdout == "fdl 9\n"
    assert Store(place / "store").record("cpu")["flodl"] == "9"
    capsys.readouterr()
    assert main(["install", "--flodl", "flodl==10", *shared]) == 1
    assert "Likely cause: the package index has no package" in capsys.readouterr().err
    assert run(launcher).stdout == "fdl 9\n"


@pytest.mark.slow
def test_an_installation_that_fails_offline_leaves_nothing_on_path(place, wheels, capsys):
    assert install("--build", "cpu", "--yes") == 1
    assert "Full log:" in capsys.readouterr().err
    assert not (place / ".local").exists()
    assert Store(place / "store").installed() == []
