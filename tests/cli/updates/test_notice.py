"""The update check in real processes: a terminal, a flodl that looks installed, a fake pip."""

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

import flodl
from flodl.cli.updates import lookup, state

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="needs pseudo-terminals"),
]

# The marker file of a container is looked up in the folder of the test: the tests may run in a container.
FDL = """
import sys
from flodl.cli import container, main
container.MARKERS = (sys.argv.pop(1),)
sys.exit(main())
"""
PIP = """
import json, os, sys, time
from pathlib import Path
here = Path(__file__).parents[2]
facts = {"words": sys.argv[1:], "session": os.getsid(0), "folder": os.getcwd(), "pid": os.getpid()}
(here / "asked.part").write_text(json.dumps(facts))
(here / "asked.part").rename(here / "asked.json")
while not (here / "answer.txt").exists():
    time.sleep(0.01)
print((here / "answer.txt").read_text())
sys.exit(int((here / "code.txt").read_text()) if (here / "code.txt").exists() else 0)
"""


class Machine:
    """A home, settings and an installed flodl for one test."""

    def __init__(self, folder):
        self.folder = folder
        self.state_file = folder / "settings/flodl/config.json"
        self.mark = folder / "container-marker"
        self.metadata = folder / f"site/flodl-{flodl.__version__}.dist-info"
        self.metadata.mkdir(parents=True)
        (folder / "site/flodl").symlink_to(Path(flodl.__file__).parent)
        (folder / "site/pip").mkdir()
        (folder / "site/pip/__init__.py").touch()
        (folder / "site/pip/__main__.py").write_text(PIP)
        (folder / "work").mkdir()
        self.environment = {
            name: value for name, value in os.environ.items() if name not in ("FDL_NO_UPDATE_CHECK", "CI")
        } | {
            "HOME": str(folder / "home"),
            "XDG_CONFIG_HOME": str(folder / "settings"),
            "PYTHONPATH": str(folder / "site"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NO_COLOR": "1",
        }  # fmt: skip

    def fdl(self, *words, terminal=True, **environment):
        """Run fdl and return what it wrote to standard error, a terminal."""
        reader, writer = os.openpty() if terminal else os.pipe()
        child = subprocess.Popen(
            [sys.executable, "-c", FDL, str(self.mark), *(words or ["--version"])],
            cwd=self.folder / "work", env={**self.environment, **environment},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=writer,
        )  # fmt: skip
        os.close(writer)
        shown = b""
        # This ends when no process has the terminal open: the background process must not keep it.
        while piece := self._read(reader):
            shown += piece
        os.close(reader)
        self.code = child.wait()
        return shown.decode().replace("\r\n", "\n")

    @staticmethod
    def _read(reader):
        try:
            return os.read(reader, 65536)
        except OSError:  # the other end of the terminal was closed
            return b""

    def put_state(self, **section):
        self.state_file.parent.mkdir(parents=True, exist_ok=True)
        self.state_file.write_text(json.dumps({"update_check": section}))

    def state(self):
        return json.loads(self.state_file.read_text())["update_check"]

    def answer(self, text):
        (self.folder / "answer.part").write_text(text)
        (self.folder / "answer.part").rename(self.folder / "answer.txt")

    def wait_for(self, condition):
        for _ in range(3000):
            if condition():
                return
            time.sleep(0.01)
        raise AssertionError("timed out")

    def asked(self):
        """Wait until pip has been called, and return how."""
        self.wait_for((self.folder / "asked.json").exists)
        return json.loads((self.folder / "asked.json").read_text())


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    yield made
    made.answer("")  # let a pip that still waits for it end
    if (tmp_path / "asked.json").exists():
        pid = made.asked()["pid"]
        made.wait_for(lambda: not _runs(pid))


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def now():
    return int(time.time())


def test_the_first_command_explains_the_check_and_looks_up_nothing(machine):
    shown = machine.fdl()
    assert "pip index versions flodl" in shown
    assert "FDL_NO_UPDATE_CHECK=1" in shown
    assert '{"update_check": {"enabled": false}}' in shown
    assert str(machine.state_file) in shown
    assert machine.state() == {
        "enabled": True, "last_check": 0, "latest_known": {}, "first_run_seen": True,
    }  # fmt: skip
    assert not (machine.folder / "home").exists()


def test_16_the_lookup_runs_in_the_background_and_the_next_command_reports_it(machine):
    machine.fdl()
    assert machine.fdl() == ""  # fdl ended and released the terminal while pip still runs
    asked = machine.asked()
    assert asked["words"][-3:] == ["index", "versions", "flodl"]
    assert "--no-input" in asked["words"]
    assert asked["session"] != os.getsid(0)
    assert asked["folder"] == str(machine.state_file.parent)
    assert now() - machine.state()["last_check"] < 600
    assert machine.state()["latest_known"] == {}
    machine.answer("flodl (99.2.0)\nAvailable versions: 99.2.0, 0.1.0\n  INSTALLED: 0.1.0\n")
    machine.wait_for(lambda: machine.state()["latest_known"])
    assert machine.state()["latest_known"] == {"flodl": "99.2.0"}
    (machine.folder / "asked.json").unlink()
    before = machine.state_file.read_text()
    assert machine.fdl() == (
        f"flodl 99.2.0 is available; this is {flodl.__version__}. To update:\n"
        f"  {sys.executable} -m pip install --upgrade flodl\n"
    )
    assert machine.state_file.read_text() == before


def test_the_lookup_is_repeated_after_a_day(machine):
    machine.put_state(first_run_seen=True, last_check=now() - state.INTERVAL_S + 600)
    assert machine.fdl() == ""
    assert now() - machine.state()["last_check"] > 600
    machine.put_state(first_run_seen=True, last_check=now() - state.INTERVAL_S - 1)
    assert machine.fdl() == ""
    assert now() - machine.state()["last_check"] < 600
    assert machine.asked()["words"][-1] == "flodl"


@pytest.mark.parametrize(
    "words", [["version"], ["--help"], ["-V"], ["no-such-command"], ["version", "--nonsense"]]
)
def test_any_command_prints_the_notice_and_keeps_its_exit_code(machine, words):
    machine.put_state(first_run_seen=True, last_check=now(), latest_known={"flodl": "99.0.0"})
    assert "\nflodl 99.0.0 is available" in "\n" + machine.fdl(*words)
    code = machine.code
    machine.fdl(*words, FDL_NO_UPDATE_CHECK="")
    assert machine.code == code


def test_an_fdl_started_by_a_project_command_prints_no_second_notice(machine):
    (machine.folder / "work/fdl.yml").write_text(
        "commands: {inner: {run: 'python -c \"from flodl.cli import main; main([\\'--version\\'])\"'}}"
    )
    machine.put_state(first_run_seen=True, last_check=now(), latest_known={"flodl": "99.0.0"})
    assert machine.fdl("inner").count("99.0.0 is available") == 1


OFF = {
    "FDL_NO_UPDATE_CHECK=1": {"FDL_NO_UPDATE_CHECK": "1"},
    "FDL_NO_UPDATE_CHECK=0": {"FDL_NO_UPDATE_CHECK": "0"},
    "FDL_NO_UPDATE_CHECK=": {"FDL_NO_UPDATE_CHECK": ""},
    "CI=true": {"CI": "true"},
    "CI=": {"CI": ""},
    "FLODL_VERBOSITY=quiet": {"FLODL_VERBOSITY": "quiet"},
    "_FDL_COMPLETE": {"_FDL_COMPLETE": "bash_complete", "COMP_WORDS": "fdl ver", "COMP_CWORD": "1"},
}
DUE = {"first_run_seen": True, "last_check": 5, "latest_known": {"flodl": "99.0.0"}}


@pytest.mark.parametrize("variables", OFF.values(), ids=OFF)
def test_the_environment_can_disable_the_check(machine, variables):
    assert machine.fdl(**variables) == ""
    assert not machine.state_file.exists()
    machine.put_state(**DUE)
    assert machine.fdl(**variables) == ""
    assert machine.state() == DUE


def test_the_check_is_disabled_in_a_container(machine):
    machine.put_state(**DUE)
    machine.mark.touch()
    assert machine.fdl() == ""
    assert machine.state() == DUE


def test_the_settings_can_disable_the_check(machine):
    machine.put_state(**DUE, enabled=False)
    assert machine.fdl() == ""
    assert machine.state() == {**DUE, "enabled": False}


def test_broken_settings_are_reported_and_kept_and_disable_the_check(machine):
    machine.state_file.parent.mkdir(parents=True)
    machine.state_file.write_text('{"update_check": {"enabled": false},}')
    for _ in range(2):
        shown = machine.fdl()
        assert f"{machine.state_file}:1: " in shown
        assert "fdl does not check for updates" in shown
    assert [path.name for path in machine.state_file.parent.iterdir()] == ["config.json"]
    assert machine.state_file.read_text() == '{"update_check": {"enabled": false},}'
    assert machine.fdl(terminal=False) == ""


def test_scripts_see_no_notice(machine):
    machine.put_state(**DUE)
    assert machine.fdl(terminal=False) == ""
    assert machine.state() == DUE


def test_no_notice_with_quiet(machine):
    machine.put_state(**DUE)
    assert machine.fdl("-q", "version") == ""
    assert machine.state() == DUE


@pytest.mark.parametrize(
    ("origin", "disabled"),
    [
        ('{"dir_info": {"editable": true}, "url": "file:///src"}', True),
        ('{"dir_info": {}, "url": "file:///src"}', True),
        ('{"vcs_info": {"vcs": "git"}, "url": "x"}', True),
        ('{"archive_info": {}, "url": "file:///flodl.whl"}', False),
    ],
)
def test_the_check_is_disabled_for_builds_from_a_folder_or_repository(machine, origin, disabled):
    machine.put_state(**{**DUE, "last_check": now()})
    (machine.metadata / "direct_url.json").write_text(origin)
    assert (machine.fdl() == "") is disabled


def test_the_check_is_disabled_in_a_checkout(machine):
    machine.put_state(**DUE)
    machine.metadata.rmdir()
    assert machine.fdl() == ""
    assert machine.state() == DUE


def test_invalid_values_are_ignored(machine):
    machine.put_state()
    machine.state_file.write_text('{"update_check": {"last_check": "x", "latest_known": 3}}')
    assert "From now on" in machine.fdl()
    assert machine.state()["first_run_seen"] is True
    assert "From now on" not in machine.fdl(FDL_NO_UPDATE_CHECK="1")


def test_nothing_happens_where_the_state_cannot_be_saved(machine):
    (machine.folder / "settings").write_text("a file where the folder would be")
    assert machine.fdl() == ""
    assert machine.code == 0


@pytest.mark.parametrize(
    ("answer", "code"),
    [("ERROR: no such thing", "1"), ("nonsense", "0"), ("Available versions: 99.0.0rc1", "0")],
)
def test_after_a_failed_lookup_the_next_one_is_a_day_later(machine, answer, code):
    (machine.folder / "code.txt").write_text(code)
    machine.put_state(**{**DUE, "latest_known": {}})
    machine.fdl()
    asked = machine.asked()
    machine.answer(answer)
    machine.wait_for(lambda: not _runs(asked["pid"]))
    assert machine.state()["latest_known"] == {}
    assert machine.fdl() == ""


def test_modules_in_the_working_directory_do_not_shadow_pip(machine):
    machine.put_state(**DUE)
    for name in ("pip.py", "json.py", "subprocess.py"):
        (machine.folder / "settings/flodl" / name).write_text("raise SystemExit('shadowed')")
    machine.fdl()
    assert machine.asked()["words"][-1] == "flodl"


def test_a_hanging_pip_is_killed(machine, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", machine.environment["PYTHONPATH"])
    monkeypatch.setattr(lookup, "LIMIT_S", 1)
    assert lookup.latest("flodl") is None
    if (machine.folder / "asked.json").exists():
        assert not _runs(machine.asked()["pid"])


@pytest.mark.skipif(find_spec("pip") is None, reason="needs pip")
def test_the_real_pip_uses_its_own_configuration(tmp_path, monkeypatch):
    for version in ("99.1.0", "99.10.0", "99.11.0rc1"):
        (tmp_path / f"flodl-{version}-py3-none-any.whl").touch()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert lookup.latest("flodl") == "99.10.0"
