"""`fdl init`: the new project works, also with flodl installed from a wheel."""

import json
import os
import shutil
import subprocess
import sys
from importlib import resources
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from flodl.cli import Args, container, main
from flodl.cli.scaffold import project as scaffold
from flodl.cli.scaffold.project import project_files

ROOT = Path(__file__).parents[3]
FILES = [
    ".gitignore",
    "README.md",
    "fdl",
    "fdl.yml",
    "model.py",
    "pytest.ini",
    "requirements.txt",
    "tests/test_train.py",
    "train.py",
]
HF_FILES = [
    ".gitignore",
    "README.md",
    "fdl",
    "fdl.yml",
    "predict.py",
    "pytest.ini",
    "requirements.txt",
    "reviews.tsv",
    "table.py",
    "tests/test_train.py",
    "texts.py",
    "train.py",
]
needs_shell = pytest.mark.skipif(os.name == "nt", reason="./fdl is a shell script; on Windows it is `fdl`")


@pytest.fixture
def work(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def written(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_project_is_written_and_the_next_steps_are_named(work, capsys):
    assert main(["init", "my-proj"]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("Next:\n  cd my-proj\n  ./fdl run\n")
    assert written(work / "my-proj") == sorted([*FILES, ".fdl/python"])
    assert [path.name for path in work.iterdir()] == ["my-proj"]
    assert os.access(work / "my-proj/fdl", os.X_OK)
    assert "{{" not in "".join(path.read_text() for path in (work / "my-proj").rglob("*") if path.is_file())


def test_json_names_the_files(work, capsys):
    assert main(["init", "one", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"path": str(work / "one"), "files": FILES, "written": True}


def test_a_dry_run_writes_nothing(work, capsys):
    assert main(["init", "one", "--dry-run"]) == 0
    assert "Would create" in capsys.readouterr().out
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("name", ["a b", "../up", "a/b", "1st", "", "ä", "a.b", "."])
def test_invalid_project_names_are_refused(work, capsys, name):
    assert main(["init", name]) == 1
    assert f"the project name {name!r} is not valid" in capsys.readouterr().err
    assert list(work.iterdir()) == []


def test_a_name_is_required(work, capsys):
    assert main(["init"]) == 2
    assert "NAME" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["folder", "empty", "file", "link"])
def test_existing_files_are_left_unchanged(work, capsys, kind):
    target = work / "mine"
    if kind == "file":
        target.write_text("precious")
    elif kind == "link":
        target.symlink_to("nowhere")
    else:
        target.mkdir()
        if kind == "folder":
            (target / "thesis.txt").write_text("precious")
    before = written(work)
    assert main(["init", "mine"]) == 1
    assert "already exists and is left unchanged" in capsys.readouterr().err
    assert written(work) == before
    assert [path.name for path in work.iterdir()] == ["mine"]


@pytest.mark.skipif(os.name == "nt", reason="needs limits of POSIX")
def test_a_project_that_cannot_be_written_leaves_nothing_behind(work):
    """A limit on the file size simulates a disk that fills up."""
    code = (
        "import resource, sys; from flodl.cli import main; import flodl.cli.scaffold.project; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); sys.exit(main(['init', 'mine']))"
    )
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "cannot be created: File too large. Nothing was left behind." in done.stderr
    assert list(work.iterdir()) == []


def test_docker_adds_images_and_services(work, capsys):
    assert main(["init", "boxed", "--docker"]) == 0
    assert "docker compose build dev" in capsys.readouterr().out
    extra = {".dockerignore", "Dockerfile", "Dockerfile.cuda", "docker-compose.yml", "fdl.cuda.yml"}
    assert set(written(work / "boxed")) == {*FILES, ".fdl/python", *extra}
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((work / "boxed/docker-compose.yml").read_text())
    assert set(compose["services"]) == {"dev", "cuda"}
    for service in compose["services"].values():
        assert ".:/workspace" in service["volumes"]
        assert (work / "boxed" / service["build"]["dockerfile"]).is_file()
    assert "gpu" in str(compose["services"]["cuda"]["deploy"])
    manifest = yaml.safe_load((work / "boxed/fdl.yml").read_text())
    assert manifest["docker"] == "dev"
    used = {command.get("docker") for command in manifest["commands"].values()} - {None}
    assert used == {"dev", "cuda"}
    assert yaml.safe_load((work / "boxed/fdl.cuda.yml").read_text()) == {"docker": "cuda"}


def test_a_project_may_fine_tune_a_hugging_face_model(work, capsys):
    assert main(["init", "mine", "--template", "hf"]) == 0
    assert written(work / "mine") == sorted([*HF_FILES, ".fdl/python"])
    assert "{{" not in "".join(path.read_text() for path in (work / "mine").rglob("*") if path.is_file())
    assert (work / "mine/requirements.txt").read_text().startswith("flodl[hf]>=")
    assert main(["init", "boxed", "--template", "hf", "--docker"]) == 0
    assert {"Dockerfile", "docker-compose.yml", *HF_FILES} <= set(written(work / "boxed"))


def test_an_unknown_template_is_named(work, capsys):
    assert main(["init", "mine", "--template", "llm"]) == 2
    assert "'llm' is not one of 'digits', 'hf'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [[], ["--template", "hf"], ["--docker"], ["--docker", "--template", "hf"]]
)
def test_the_help_of_run_lists_the_options_of_a_new_project(work, capsys, monkeypatch, options):
    monkeypatch.setattr(container, "inside_container", lambda: False)  # and no image has been built
    assert main(["init", "proj", *options]) == 0
    monkeypatch.chdir(work / "proj")
    capsys.readouterr()
    for words in (["run", "--help"], ["quick", "--help"], ["run", "quick", "--help"]):
        assert main(words) == 0
        assert "--batch-size INT" in capsys.readouterr().out


def test_docker_and_native_exclude_each_other(work, capsys):
    assert main(["init", "x", "--docker", "--native"]) == 2
    assert "mutually exclusive" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [[], ["--docker"], ["--template", "hf"], ["--template", "hf", "--docker"]]
)
def test_the_manifest_passes_lint(work, capsys, monkeypatch, options):
    main(["init", "mine", *options])
    monkeypatch.chdir(work / "mine")
    capsys.readouterr()
    assert main(["config", "lint"]) == 0
    assert main(["config", "show"]) == 0
    assert "entry: python train.py" in capsys.readouterr().out


@pytest.mark.parametrize("template", ["digits", "hf"])
def test_the_code_passes_ruff(work, template):
    main(["init", "mine", "--template", template])
    files = project_files("mine", docker=False, template=template)
    names = [str(path) for path, _text in files if path.suffix == ".py"]
    for job in (["check", "--select", "E,F,I,B,UP,SIM"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *job, "--isolated", "--line-length", "110", *names]
        done = subprocess.run(ruff, cwd=work / "mine", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@needs_shell
class TestScript:
    """`./fdl` of a project finds flodl in a documented order."""

    @pytest.fixture
    def project(self, work, monkeypatch):
        main(["init", "mine"])
        for name in ("VIRTUAL_ENV", "FLODL_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(work / "home"))
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        (work / "mine/.fdl/python").unlink()
        return work / "mine"

    @staticmethod
    def put(folder, name):
        """Create an fdl in a folder that prints its name and the first python on PATH."""
        folder.mkdir(parents=True, exist_ok=True)
        for program, text in (("fdl", f'echo {name} "$@"; command -v python'), ("python", "")):
            (folder / program).write_text(f"#!/bin/sh\n{text}\n")
            (folder / program).chmod(0o755)
        return folder

    @staticmethod
    def start(project, *arguments, cwd=None, **environment):
        return subprocess.run(
            [str(project / "fdl"), *arguments],
            cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True,
        )  # fmt: skip

    def test_the_nearest_flodl_is_used_and_its_python_comes_first(self, project, work):
        on_path = self.put(work / "path", "path")
        path = f"{on_path}:/usr/bin:/bin"

        def first():
            return self.start(project, PATH=path, VIRTUAL_ENV=str(active)).stdout.splitlines()

        active = work / "nothing"
        assert first() == ["path", f"{on_path}/python"]
        created_with = self.put(work / "made/bin", "made")
        (project / ".fdl/python").write_text(f"{created_with}/python\n")
        assert first() == ["made", f"{created_with}/python"]
        build = self.put(work / "home/.flodl/torch/cu130/bin", "build")
        (work / "home/.flodl/torch/.active").write_text("cu130\n")
        assert first() == ["build", f"{build}/python"]
        active = self.put(work / "active/bin", "active").parent
        assert first() == ["active", f"{active}/bin/python"]
        own = self.put(project / ".venv/bin", "own")
        assert first() == ["own", f"{own}/python"]

    def test_arguments_are_passed_unchanged_from_any_folder(self, project, work):
        (project / ".venv/bin").mkdir(parents=True)
        (project / ".venv/bin/fdl").write_text('#!/bin/sh\nprintf "%s|" "$PWD" "$@"\n')
        (project / ".venv/bin/fdl").chmod(0o755)
        done = self.start(project, "run", "--out", "a  b", "", cwd=work)
        assert done.stdout == f"{work}|run|--out|a  b||"

    def test_a_path_with_the_script_itself_does_not_recurse(self, project):
        done = self.start(project, "run", PATH=f"{project}:/nothing", cwd=project)
        assert done.returncode != 0

    def test_a_failed_setup_leaves_no_partial_environment(self, project, work):
        fake = work / "programs"
        fake.mkdir()
        (fake / "python3").write_text(
            '#!/bin/sh\nmkdir -p "$3/bin"; cp "$0" "$3/bin/python"; [ "$2" = venv ]\n'
        )
        (fake / "python3").chmod(0o755)
        done = self.start(project, "run", PATH=f"{fake}:/usr/bin:/bin")
        assert done.returncode == 1
        assert "error: flodl could not be installed" in done.stderr
        assert not (project / ".venv").exists()


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment with flodl from a wheel. torch and other packages come from this environment."""
    if find_spec("hatchling") is None:
        pytest.skip("needs hatchling to build the wheel")
    folder = tmp_path_factory.mktemp("installed")
    # Build from a copy, so that building leaves nothing behind and the source cannot change meanwhile.
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(source)]
    subprocess.run([*pip, *build], check=True, capture_output=True)
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wheel = next(folder.glob("flodl-*.whl"))
    install = ["--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], check=True, capture_output=True)
    question = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.check_output([str(python), "-c", question], text=True).strip()
    borrowed = next(path for path in map(Path, sys.path) if (path / "torch").is_dir())
    (Path(site) / "borrowed.pth").write_text(f"{borrowed}\n")
    return environment


def test_an_invalid_setting_is_reported_in_one_line(work, warm_python):
    assert main(["init", "my-proj"]) == 0
    for setting, message in (
        ("--epochs=0", "--epochs is 0. It must be at least 1."),
        ("--lr=nan", "--lr is nan."),
    ):
        done = warm_python.run("train.py", setting, cwd=work / "my-proj")
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.py", "--data", "missing.csv"], "error: there is no file missing.csv. Check --data."),
        (["train.py", "--label-column", "stars"], "error: "),
        (["train.py", "--model", "no/such-model"], "--model tiny"),
        (["train.py", "--lr", "7"], "error: --lr is 7.0. It must be between 0 and 1"),
        (["predict.py", "a text"], "Train one first: ./fdl run"),
        (["predict.py"], "Missing argument"),
    ],
)
@pytest.mark.slow
def test_mistakes_in_a_fine_tuning_project_are_messages(work, warm_python, words, message):
    assert main(["init", "mine", "--template", "hf"]) == 0
    done = warm_python.run(*words, cwd=work / "mine", HF_HUB_OFFLINE="1")
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (work / "mine/runs").exists()


@pytest.mark.slow
def test_a_fine_tuning_project_trains_predicts_and_passes_its_tests(work, warm_python):
    assert main(["init", "mine", "--template", "hf"]) == 0

    def run(*words):
        done = warm_python.run(*words, cwd=work / "mine", HF_HUB_OFFLINE="1")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shown = run("train.py")
    assert "tiny model with random weights" in shown
    assert "epoch 4/4" in shown
    lines = run("predict.py", "what a wonderful film !", "the acting is boring and flat .").splitlines()
    assert [line.split()[0] for line in lines] == ["positive", "negative"]
    assert "20 passed" in run("-m", "pytest", "-q")


@pytest.mark.slow
@needs_shell
def test_an_installed_flodl_creates_a_project_that_trains_with_two_commands(installed, work):
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("FLODL", "FDL", "PYTHON"))
    }
    clean |= {"PATH": "/usr/bin:/bin", "HOME": str(work), "OMP_NUM_THREADS": "1"}
    clean.pop("VIRTUAL_ENV", None)
    subprocess.run(
        [str(installed / "bin/fdl"), "init", "my-proj"], check=True, env=clean, capture_output=True
    )
    project = work / "my-proj"
    done = subprocess.run(
        ["./fdl", "run", "--epochs", "2", "--images", "1200"],
        cwd=project,
        env=clean,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "epoch 2/2" in done.stdout
    (run,) = (project / "runs").iterdir()
    for name in ("model.fdl", "model.svg", "journal.jsonl", "config.json"):
        assert (run / name).stat().st_size > 0
    shown = subprocess.run(
        ["./fdl", "monitor", f"runs/{run.name}", "--json"],
        cwd=project,
        env=clean,
        capture_output=True,
        text=True,
    )
    (shown_run,) = json.loads(shown.stdout)["runs"]
    assert [epoch["epoch"] for epoch in shown_run["history"]] == [1, 2]
    assert '"origin":"--epochs"' in (run / "journal.jsonl").read_text()
    done = subprocess.run(["./fdl", "check"], cwd=project, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    where = [str(installed / "bin/python"), "-c", "import flodl; print(flodl.__file__)"]
    assert subprocess.check_output(where, text=True, env=clean).startswith(str(installed))


def test_the_second_of_two_concurrent_inits_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write = scaffold._write

    def write_concurrently(path, text):
        write(tmp_path / "twoi" / "file", "of the other")
        write(path, text)

    monkeypatch.setattr(scaffold, "_write", write_concurrently)
    assert main(["init", "twoi"]) == 1
    assert "another `fdl init` has just created" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["twoi", "file"]


@pytest.fixture(params=["digits"])
def training_script(work, monkeypatch, request):
    """The train.py of a new project, as a module."""
    assert main(["init", "proj", "--template", request.param]) == 0
    monkeypatch.chdir(work / "proj")
    spec = spec_from_file_location("proj_train", work / "proj/train.py")
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "proj_train", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume", "nope"], "--resume is nope, which does not exist. runs has no saved runs."),
        (["--resume", "tests"], "--resume is tests, which has no saved run."),
        (["--output", "README.md"], "--output is README.md, which is a file"),
        (["--seed", str(10**30)], "--seed is"),
        (["--images", str(10**12)], "It must be at most 1000000"),
        (["--lr", "nan"], "--lr is nan"),
    ],
)
def test_wrong_options_of_a_new_project_are_named_with_exit_code_2(training_script, words, message, capsys):
    with pytest.raises(SystemExit) as caught:
        Args(training_script.Settings).parse(words)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("training_script", ["digits", "hf"], indirect=True)
def test_a_misspelled_run_to_resume_creates_nothing_and_the_saved_runs_are_named(training_script, capsys):
    for name in ("2026-01-01_10-00-00", "2026-01-02_10-00-00"):
        Path("runs", name, "bundles", "step-4").mkdir(parents=True)
    before = sorted(Path().rglob("*"))
    with pytest.raises(SystemExit):
        Args(training_script.Settings).parse(["--resume", "runs/2026-01-01_10-00"])
    error = capsys.readouterr().err
    assert "--resume is runs/2026-01-01_10-00, which does not exist." in error
    assert "Saved runs: runs/2026-01-01_10-00-00, runs/2026-01-02_10-00-00." in error
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("training_script", ["digits", "hf"], indirect=True)
def test_runs_of_a_new_project_that_start_in_one_second_have_different_folders(training_script, tmp_path):
    folders = {training_script.new_folder(tmp_path / "runs") for _ in range(3)}
    assert len(folders) == 3
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"error: --output is .*file/runs, where no folder can be created"):
        training_script.new_folder(tmp_path / "file/runs")


@pytest.mark.parametrize("training_script", ["digits", "hf"], indirect=True)
def test_the_folder_of_a_run_that_has_written_nothing_is_removed(training_script, tmp_path):
    empty, used = (training_script.new_folder(tmp_path / "runs") for _ in range(2))
    (used / "config.json").touch()
    for folder in (empty, used):
        training_script.remove_if_empty(folder)
    assert list((tmp_path / "runs").iterdir()) == [used]


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--seed", "1"], ["--images", "36"]])
def test_resuming_a_new_project_with_other_data_ends_with_a_message_and_exit_code_1(work, warm_python, words):
    assert main(["init", "proj"]) == 0
    script = ["train.py", "--batch-size", "10", "--images", "24"]
    first = warm_python.run(*script, "--epochs", "1", cwd=work / "proj")
    assert first.returncode == 0, first.stderr
    (folder,) = (work / "proj/runs").iterdir()
    done = warm_python.run(*script, "--epochs", "2", *words, "--resume", folder, cwd=work / "proj")
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_new_project_trains_and_saves_a_plain_module(work, warm_python):
    assert main(["init", "proj"]) == 0
    project = work / "proj"
    model = (project / "model.py").read_text()
    begin, end = model.index("    return ("), model.index("        .build()\n    )\n")
    plain = "    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))\n"
    (project / "model.py").write_text(model[:begin] + plain + model[end + len("        .build()\n    )\n") :])
    done = warm_python.run("train.py", "--images", "60", "--epochs", "1", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "model.fdl (weights) and the journal of the run" in done.stdout
    assert [*project.glob("runs/*/model.fdl")]


@pytest.mark.parametrize("template", ["digits", "hf"])
def test_scripts_of_a_new_project_report_every_flodl_error(template):
    folder = resources.files("flodl.cli.scaffold") / "templates" / template
    scripts = [file for file in folder.iterdir() if "__main__" in _text_of(file)]
    assert scripts
    for script in scripts:
        assert "except FlodlError as error:" in _text_of(script).partition("__main__")[2], script.name


@pytest.mark.slow
@pytest.mark.parametrize("template", ["digits", "hf"])
def test_ctrl_c_while_a_new_project_starts_is_one_line_and_exit_code_130(work, warm_python, template):
    assert main(["init", "proj", "--template", template]) == 0
    interrupted = "flodl.manual_seed = lambda seed: signal.raise_signal(signal.SIGINT)"
    code = f"import flodl, runpy, signal; {interrupted}; runpy.run_path('train.py', run_name='__main__')"
    done = warm_python.run("-c", code, cwd=work / "proj")
    assert (done.returncode, done.stderr) == (130, "Stopped.\n")


@pytest.mark.parametrize("template", ["digits", "hf"])
def test_commands_that_a_new_project_suggests_quote_the_folder(template):
    folder = resources.files("flodl.cli.scaffold") / "templates" / template
    text = _text_of(folder / "train.py.tmpl")
    assert "--resume {shlex.quote(str(folder))}" in text
    for unquoted in ("--resume {folder}", "fdl monitor {folder}", "--model {folder"):
        assert unquoted not in text


def _text_of(file):
    return file.read_text() if file.name.endswith(".py.tmpl") else ""
