"""`fdl autocomplete`: the startup file of a shell loads completion, and nothing else in it changes."""

import json
import os
import shutil
import stat
import subprocess
import sys

import pytest

from flodl.cli import main
from flodl.cli.shells.startup import BEGIN, END, block

FILES = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/config.fish"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHELL", "/bin/bash")
    return tmp_path


@pytest.mark.parametrize("shell", FILES)
def test_the_startup_file_of_the_users_shell_gets_the_lines_once(home, monkeypatch, shell, capsys):
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    file = home / FILES[shell]
    for _ in range(2):
        assert main(["autocomplete"]) == 0
        assert file.read_text() == block(shell) + "\n"
    shown = capsys.readouterr().out
    assert f"Added completion to {file}." in shown
    assert f"{file} has completion already." in shown


@pytest.mark.parametrize(
    "before", ["", "alias x=y\n", "alias x=y", "a\n\n\n", "a\r\nb\r\n", "caf\xe9 \udcff\n"]
)
def test_adding_and_removing_leaves_the_rest_as_it_was(home, before):
    file = home / ".bashrc"
    file.write_bytes(before.encode("utf-8", "surrogateescape"))
    assert main(["autocomplete"]) == 0
    added = file.read_bytes()
    assert added.startswith(before.encode("utf-8", "surrogateescape"))
    assert (b"\r\n" in added) == ("\r\n" in before)
    assert main(["autocomplete", "--uninstall"]) == 0
    after = file.read_bytes().decode("utf-8", "surrogateescape")
    assert after == (before if not before or before.endswith("\n") else before + "\n")


def test_an_older_block_is_updated_in_its_place_and_duplicates_are_removed(home):
    older = f"{BEGIN}\nolder\n{END}\n"
    (home / ".bashrc").write_text(f"first\n{older}second\n{older}third\n")
    assert main(["autocomplete"]) == 0
    assert (home / ".bashrc").read_text() == f"first\n{block('bash')}\nsecond\nthird\n"


@pytest.mark.parametrize("text", [f"a\n{BEGIN}\nb\n", f"a\n{END}\n", f"a\n{BEGIN}\n{BEGIN}\nx\n{END}\n"])
def test_a_damaged_block_is_reported_and_nothing_changes(home, text, capsys):
    (home / ".bashrc").write_text(text)
    for arguments in ([], ["--uninstall"]):
        assert main(["autocomplete", *arguments]) == 1
        assert f"{home}/.bashrc:2: " in capsys.readouterr().err
        assert (home / ".bashrc").read_text() == text


def test_a_line_of_the_user_is_enough(home, capsys):
    (home / ".bashrc").write_text('# eval "$(fdl completions bash)"\neval "$(fdl completions bash)"\n')
    before = (home / ".bashrc").read_text()
    assert main(["autocomplete"]) == 0
    assert (home / ".bashrc").read_text() == before
    assert ".bashrc:2 loads completion already" in capsys.readouterr().out


def test_a_linked_file_stays_a_link_with_its_permissions(home):
    (home / "dotfiles").mkdir()
    real = home / "dotfiles/bashrc"
    real.write_text("alias x=y\n")
    real.chmod(0o600)
    (home / ".bashrc").symlink_to(real)
    assert main(["autocomplete"]) == 0
    assert (home / ".bashrc").is_symlink()
    assert BEGIN in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_print_changes_nothing(home, capsys):
    assert main(["autocomplete", "--print", "--shell", "zsh"]) == 0
    assert capsys.readouterr().out == block("zsh") + "\n"
    assert list(home.iterdir()) == []


def test_json_names_the_file(home, monkeypatch, capsys):
    monkeypatch.setenv("ZDOTDIR", str(home / "zsh"))
    assert main(["autocomplete", "--shell", "zsh", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"shell": "zsh", "path": f"{home}/zsh/.zshrc", "changed": True}


@pytest.mark.parametrize("shell", ["", "/bin/tcsh"])
def test_an_unknown_shell_is_an_error_with_the_choices(home, monkeypatch, shell, capsys):
    monkeypatch.setenv("SHELL", shell)
    assert main(["autocomplete"]) == 1
    assert "--shell bash, --shell zsh, --shell fish" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_cannot_be_written_is_reported(home, capsys):
    home.chmod(0o500)
    assert main(["autocomplete"]) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "start", "question"),
    [
        ("bash", ["bash", "-ic"], "complete -p fdl"),
        ("zsh", ["zsh", "-ic"], "echo ${_comps[fdl]}"),
        ("fish", ["fish", "-ic"], "complete --do-complete 'fdl autoc'"),
    ],
)
def test_a_new_shell_has_completion(home, tmp_path, shell, start, question):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "fdl").write_text(
        f"#!{sys.executable}\nimport sys\nfrom flodl.cli import main\nsys.exit(main())\n"
    )
    (programs / "fdl").chmod(0o755)
    assert main(["autocomplete", "--shell", shell]) == 0
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run([*start, question], env=environment, capture_output=True, text=True, timeout=60)
    assert "_fdl_completion" in done.stdout or "autocomplete" in done.stdout, done.stderr
