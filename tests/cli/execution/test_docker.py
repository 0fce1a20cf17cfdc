"""Commands that run in a container."""

import json

import pytest

from flodl.cli import container, main
from flodl.cli.execution import docker

from .plans import planned

COMPOSE = """
services:
  dev:
    volumes: ["cache:/cache", ".:/src/:rw"]
  long:
    volumes: [{type: bind, source: ./, target: /long}]
  bare: {}
"""


@pytest.mark.parametrize(
    ("service", "root"), [("dev", "/src"), ("long", "/long"), ("bare", "/workspace"), ("none", "/workspace")]
)
def test_the_container_root_is_where_the_project_is_mounted(project, service, root):
    folder = project({"docker-compose.yml": COMPOSE})
    assert docker.container_root(folder, service) == root


def test_without_a_compose_file_the_container_root_is_the_default(tmp_path):
    assert docker.container_root(tmp_path, "dev") == "/workspace"


@pytest.fixture
def outside(monkeypatch):
    monkeypatch.delenv("FLODL_VERBOSITY")
    monkeypatch.setattr(container, "inside_container", lambda: False)


def test_the_exact_docker_command_of_an_entry(project, stand_in, outside, capfd):
    root = project(
        {
            "fdl.yml": "commands: {train: {path: jobs/train job}}",
            "docker-compose.yml": COMPOSE,
            "jobs/train job/fdl.yml": """
                entry: python train.py
                docker: dev
                commands: {q: {options: {name: it's}}}
            """,
        }
    )
    called = stand_in("docker", code=3)
    assert main(["train", "q", "--lr", "a b"]) == 3
    assert called() == [
        str(root), "compose", "run", "--rm", "-e", "FDL_PROJECT_ROOT=/src", "dev", "bash", "-c",
        "cd '/src/jobs/train job' && python train.py --name 'it'\"'\"'s' --lr 'a b'",
    ]  # fmt: skip
    assert capfd.readouterr().err.startswith("fdl: [dev] python train.py --name ")
    table = json.loads((root / ".fdl/resolved.json").read_text())
    assert table["lr"] == {"value": "a b", "origin": "--lr"}


def test_the_exact_docker_command_of_a_script(project, stand_in, outside):
    root = project({"fdl.yml": "commands: {t: {run: pytest -q, docker: dev, append: -- -x}}"})
    called = stand_in("docker")
    assert main(["t", "--", "a b"]) == 0
    assert called() == [str(root), "compose", "run", "--rm", "dev", "bash", "-c", "pytest -q 'a b' -- -x"]


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (["run", "--monitor"], ["FLODL_MONITOR=1"]),
        (["-vv"], ["FLODL_VERBOSITY=3"]),
        (["--no-ansi"], ["FLODL_COLOR=never", "NO_COLOR=1"]),
        (["-q", "run", "--monitor"], ["FLODL_VERBOSITY=0", "FLODL_MONITOR=1"]),
    ],
)
def test_flags_are_passed_to_a_container(project, stand_in, outside, flags, variables):
    project(
        {
            "fdl.yml": "commands: {train: , t: {run: pytest, docker: dev}}",
            "train/fdl.yml": "entry: tool\ndocker: dev",
        }
    )
    called = stand_in("docker")
    options = [word for variable in variables for word in ("-e", variable)]
    assert main([*flags, "train"]) == 0
    root = ["-e", "FDL_PROJECT_ROOT=/workspace"]
    end = ["dev", "bash", "-c", "cd /workspace/train && tool"]
    assert called()[1:] == ["compose", "run", "--rm", *root, *options, *end]
    assert main([*flags, "t"]) == 0
    assert called()[1:] == ["compose", "run", "--rm", *options, "dev", "bash", "-c", "pytest"]


def test_inside_a_container_nothing_is_wrapped(project, monkeypatch, capfd):
    monkeypatch.setattr(container, "inside_container", lambda: True)
    project({"fdl.yml": "commands: {t: {run: echo here, docker: dev}}"})
    assert main(["t"]) == 0
    assert capfd.readouterr().out == "here\n"


def test_variables_of_the_host_do_not_override_settings_in_a_container(project, outside, monkeypatch):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": """
                entry: tool
                docker: dev
                training: {lr: 1}
                schema: {options: {lr: {type: float, env: TRAIN_LR}}}
            """,
        }
    )
    monkeypatch.setenv("TRAIN_LR", "2")
    plan = planned("train")
    assert plan.command[-1] == "cd /workspace/train && tool --lr 1"
    assert plan.table["lr"]["origin"] == "train/fdl.yml:3"


def test_docker_from_a_subfolder_starts_in_the_right_folder(project, stand_in, outside, monkeypatch):
    root = project(
        {
            "compose.yaml": COMPOSE,
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": """
                entry: python train.py
                docker: dev
                commands: {p: {options: {x: 1}}, check: {run: pytest, docker: dev}}
            """,
        }
    )
    called = stand_in("docker")
    monkeypatch.chdir(root / "train")
    assert main(["p"]) == 0
    assert called()[0] == str(root)
    assert called()[-1] == "cd /src/train && python train.py --x 1"
    assert main(["check"]) == 0
    assert (called()[0], called()[-1]) == (str(root), "cd /src/train && pytest")


@pytest.mark.parametrize("name", ["compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"])
def test_every_compose_file_name_is_recognized(project, name):
    root = project({name: COMPOSE, "a/b/x": ""})
    assert docker.project_with_compose(root / "a/b") == root
    assert docker.container_root(root, "dev") == "/src"
