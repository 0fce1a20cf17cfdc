"""Compile libtorch or a wheel of torch for the GPUs of this machine, in steps that can be resumed."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flodl.core.errors import SetupError
from flodl.core.files import write_atomic

from .builds import TORCH, version_numbers
from .hardware import Hardware
from .pip import PIP_FLAGS, Step, run
from .store import Store, cannot_write, python_of
from .toolchain import Toolkit, choose_jobs

REPOSITORY = "https://github.com/pytorch/pytorch"
Echo = Callable[[str], None]


@dataclass(frozen=True)
class Arch:
    """A compute capability to compile for, and where it comes from."""

    name: str
    origin: str


@dataclass(frozen=True)
class BuildSpec:
    """What to compile: the architectures, the compiler, the number of jobs with the reason, the sources."""

    archs: tuple[Arch, ...]
    toolkit: Toolkit
    jobs: int
    jobs_reason: str
    source: Path | None = None
    version: str = TORCH
    wheel: bool = False

    @property
    def arch_list(self) -> str:
        """The value of TORCH_CUDA_ARCH_LIST."""
        return ";".join(arch.name for arch in self.archs)

    @property
    def name(self) -> str:
        """The name of the variant, such as `sm61-sm120`."""
        return "-".join(f"sm{re.sub(r'[.+]', '', arch.name).lower()}" for arch in self.archs)


def archs_of(hardware: Hardware) -> tuple[Arch, ...]:
    """Return the compute capabilities of the NVIDIA GPUs of a machine, each once, oldest first."""
    gpus = hardware.gpus_from("nvidia")
    if not gpus:
        raise SetupError(
            "no NVIDIA GPU was found, so the architectures are unknown. Name them: --archs '6.1;12.0'. "
            "Builds for the CPU are published: fdl setup --build cpu"
        )
    unknown = [gpu for gpu in gpus if not gpu.capability]
    if unknown:
        raise SetupError(
            f"the compute capability of GPU {unknown[0].index}, {unknown[0].name}, is unknown: the driver is "
            "too old to report it. Name the architectures of all GPUs: --archs '6.1;12.0'"
        )
    names = sorted({gpu.capability for gpu in gpus}, key=version_numbers)
    return tuple(
        Arch(name, ", ".join(f"GPU {gpu.index}, {gpu.name}" for gpu in gpus if gpu.capability == name))
        for name in names
    )


def parse_archs(text: str) -> tuple[Arch, ...]:
    """Return the architectures in the text of `--archs`.

    >>> [arch.name for arch in parse_archs("12.0, 6.1;6.1")]
    ['6.1', '12.0']
    """
    names = [part for part in re.split(r"[;,\s]+", text.strip()) if part]
    wrong = [name for name in names if not re.fullmatch(r"\d{1,2}\.\d[af]?(\+PTX)?", name)]
    if wrong or not names:
        shown = f" {wrong[0]!r} is not a compute capability." if wrong else ""
        raise SetupError(f"--archs {text!r}:{shown} Write them like '6.1;12.0' or '9.0+PTX'.")
    ordered = sorted(dict.fromkeys(names), key=lambda name: (version_numbers(name), name))
    return tuple(Arch(name, "--archs") for name in ordered)


def jobs_of(hardware: Hardware, requested: int | None) -> tuple[int, str]:
    """Return the number of jobs and the reason."""
    return (requested, "--jobs") if requested else choose_jobs(hardware)


@dataclass(frozen=True)
class Layout:
    """The folders of a build: sources, objects, and where the result goes."""

    store: Store
    spec: BuildSpec

    @property
    def cache(self) -> Path:
        """The folder for what is needed only while compiling."""
        return self.store.root / "libtorch" / ".build-cache"

    @property
    def source(self) -> Path:
        """The sources of torch."""
        return self.spec.source or self.cache / f"pytorch-{self.spec.version}"

    @property
    def work(self) -> Path:
        """The objects of this build."""
        kind = "-wheel" if self.spec.wheel else ""
        return self.cache / f"{self.spec.name}-{self.spec.version}{kind}"

    @property
    def target(self) -> Path:
        """The finished libtorch, or the folder with the wheel."""
        return self.store.root / "libtorch" / ("wheels" if self.spec.wheel else "builds") / self.spec.name


def plan(layout: Layout) -> list[Step]:
    """Return the commands, in their order."""
    spec, source, work = layout.spec, layout.source, layout.work
    python = str(python_of(work / "venv"))
    last = 5 if spec.source is None else 4
    steps = [
        (f"create an environment in {work / 'venv'}", (sys.executable, "-m", "venv", str(work / "venv"))),
        (
            "install what the build needs",
            (python, "-m", "pip", "install", *PIP_FLAGS, "-r", str(source / "requirements.txt")),
        ),
        *(_wheel_steps if spec.wheel else _libtorch_steps)(layout, python),
    ]
    if spec.source is None:
        clone = ("git", "clone", "--depth", "1", "--branch", f"v{spec.version}", "--recurse-submodules")
        fetch = (*clone, "--shallow-submodules", REPOSITORY, str(source))
        steps.insert(0, (f"download the sources of torch {spec.version}", fetch))
    if spec.wheel:
        last -= 1
    return [Step(f"[{number}/{last}] {title}", command) for number, (title, command) in enumerate(steps, 1)]


def _environment(spec: BuildSpec) -> tuple[str, ...]:
    return (
        "env",
        f"TORCH_CUDA_ARCH_LIST={spec.arch_list}",
        f"CUDACXX={spec.toolkit.nvcc}",
        f"MAX_JOBS={spec.jobs}",
    )


def _libtorch_steps(layout: Layout, python: str) -> list[tuple[str, tuple[str, ...]]]:
    spec, objects = layout.spec, str(layout.work / "objects")
    configure = (
        *_environment(spec),
        *("cmake", "-G", "Ninja", "-S", str(layout.source), "-B", objects),
        "-DCMAKE_BUILD_TYPE=Release",
        "-DBUILD_SHARED_LIBS=ON",
        "-DBUILD_PYTHON=OFF",
        "-DBUILD_TEST=OFF",
        "-DUSE_CUDA=ON",
        f"-DPython_EXECUTABLE={python}",
        f"-DCMAKE_INSTALL_PREFIX={layout.work / 'libtorch'}",
    )
    build = (*_environment(spec), "cmake", "--build", objects, "--target", "install", "-j", str(spec.jobs))
    return [("configure", configure), (f"compile for {spec.arch_list} with {spec.jobs} jobs", build)]


def _wheel_steps(layout: Layout, python: str) -> list[tuple[str, tuple[str, ...]]]:
    spec = layout.spec
    version = f"PYTORCH_BUILD_VERSION={spec.version}+{spec.name.replace('-', '.')}"
    settings = (*_environment(spec), version, "PYTORCH_BUILD_NUMBER=1", "USE_CUDA=1", "BUILD_TEST=0")
    pip = (python, "-m", "pip", "wheel", *PIP_FLAGS, "--no-build-isolation", "--no-deps")
    command = (*settings, *pip, "--wheel-dir", str(layout.target), str(layout.source))
    return [(f"compile for {spec.arch_list} with {spec.jobs} jobs", command)]


def build(layout: Layout, echo: Echo) -> None:
    """Run the steps that are not done yet, and move the result to its place."""
    store, work, target = layout.store, layout.work, layout.target
    with store.locked():
        try:
            work.mkdir(parents=True, exist_ok=True)
            log = work / "build.log"
            log.write_text("", encoding="utf-8")
        except OSError as error:
            raise cannot_write(error) from None
        for number, step in enumerate(plan(layout), start=1):
            mark = _mark(layout, number)
            if mark.is_file() and mark.read_text(encoding="utf-8") == _signature(step):
                echo(f"{step.title}: done earlier")
                continue
            _clear(step)
            run(step, log, echo, progress=CompileProgress())
            write_atomic(mark, _signature(step))
        if not layout.spec.wheel:
            _publish(work / "libtorch", target, layout.spec)


def _mark(layout: Layout, number: int) -> Path:
    """Return the file that says that a step is done; the sources are shared by all builds."""
    is_shared = number == 1 and layout.spec.source is None
    return (
        layout.source.with_name(f"{layout.source.name}.done") if is_shared else layout.work / f"{number}.done"
    )


def _signature(step: Step) -> str:
    """Return what identifies a step; the number of jobs does not change the result."""
    words = [word for word in step.command if not word.startswith("MAX_JOBS=")]
    if "-j" in words:
        words = words[: words.index("-j")]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def _clear(step: Step) -> None:
    """Delete an incomplete clone, which git would refuse to continue."""
    if step.command[:2] == ("git", "clone"):
        shutil.rmtree(step.command[-1], ignore_errors=True)


def _publish(built: Path, target: Path, spec: BuildSpec) -> None:
    """Move the finished libtorch to its place."""
    if not (built / "lib/libtorch.so").is_file():
        raise SetupError(f"{built} has no lib/libtorch.so: the build is incomplete. Run the command again.")
    notes = {"cuda": spec.toolkit.version, "torch": spec.version, "archs": spec.arch_list.replace(";", " ")}
    text = "".join(f"{name}={value}\n" for name, value in {**notes, "source": "built here"}.items())
    try:
        write_atomic(built / ".arch", text)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(built, target, symlinks=True)
    except OSError as error:
        raise cannot_write(error) from None


class CompileProgress:
    """Return a line of ninja's output for each percent.

    >>> progress = CompileProgress()
    >>> [progress(f"[{number}/1000] Building CXX object") for number in (1, 5, 10, 11)]
    ['    0 % of 1000 files', '', '    1 % of 1000 files', '']
    """

    def __init__(self) -> None:
        self._shown = -1

    def __call__(self, line: str) -> str:
        """Return what to print for a line, or an empty string."""
        found = re.match(r"\[(\d+)/(\d+)\]", line)
        percent = int(found[1]) * 100 // max(int(found[2]), 1) if found else -1
        if found is None or percent <= self._shown:
            return ""
        self._shown = percent
        return f"    {percent} % of {found[2]} files"


def describe(layout: Layout, notes: Sequence[str]) -> str:
    """Return the plan for people: architectures with their origins, compiler, jobs, folders."""
    spec, toolkit = layout.spec, layout.spec.toolkit
    lines = [f"torch {spec.version} for TORCH_CUDA_ARCH_LIST={spec.arch_list}"]
    lines += [f"  {arch.name:<6} {arch.origin}" for arch in spec.archs]
    lines += [
        f"Compiler: CUDA {toolkit.version} ({toolkit.nvcc})",
        f"Jobs:     {spec.jobs} ({spec.jobs_reason})",
        f"Sources:  {layout.source}",
        f"Objects:  {layout.work}",
        f"Result:   {layout.target}",
    ]
    return "\n".join([*lines, *(f"Note:     {note}" for note in notes)])
