"""The libtorch inside a torch wheel, or unpacked from an archive: its folders, facts and exports.

Variants: `python` is in the torch of the Python that runs now, `torch/<build>` in a build that `fdl setup`
installed, `precompiled/<name>` in an archive that `fdl libtorch download` unpacked, and a path is a folder.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from flodl.core.errors import SetupError
from flodl.core.paths import suggestion

from .builds import BUILDS
from .hardware import read
from .store import Store

THIS_PYTHON = "python"


@dataclass(frozen=True)
class Libtorch:
    """One libtorch on this disk."""

    variant: str
    root: Path

    @property
    def include(self) -> tuple[Path, ...]:
        """The folders for the compiler."""
        return (self.root / "include", self.root / "include/torch/csrc/api/include")

    @property
    def lib(self) -> Path:
        """The folder for the linker."""
        return self.root / "lib"

    @property
    def cmake(self) -> Path:
        """The prefix for CMake's `find_package(Torch)`."""
        return self.root / "share/cmake"

    @property
    def library_path(self) -> tuple[Path, ...]:
        """The folders for the loader: a CUDA wheel has CUDA's own libraries in packages beside torch."""
        return (self.lib, *sorted(self.root.parent.glob("nvidia/*/lib")))

    @property
    def version(self) -> str | None:
        """The version, with its build: `2.13.0+cu130`."""
        found = re.search(r"^__version__ = ['\"](.+?)['\"]", read(self.root / "version.py"), re.MULTILINE)
        return found[1] if found else read(self.root / "build-version") or self.notes().get("torch")

    @property
    def build(self) -> str | None:
        """The build, as far as the version names it."""
        return (self.version or "").partition("+")[2] or None

    @property
    def cuda(self) -> str | None:
        """The version of CUDA that it was built with."""
        found = re.search(r"^cuda\b.*= ['\"](.+?)['\"]", read(self.root / "version.py"), re.MULTILINE)
        noted = self.notes().get("cuda")
        return found[1] if found else noted if noted not in (None, "none") else None

    @property
    def archs(self) -> str:
        """The compute capabilities that it has code for."""
        known = {build.name: build for build in BUILDS}.get(self.build or "")
        return self.notes().get("archs") or (" ".join(known.code_for) if known and known.cuda else "cpu")

    @property
    def source(self) -> str | None:
        """Where it came from: a wheel, or the address of an archive."""
        return "wheel" if (self.root / "version.py").is_file() else self.notes().get("source")

    def notes(self) -> dict[str, str]:
        """Give what was noted in `.arch` when an archive was unpacked."""
        return dict(re.findall(r"^(\w+)=(.*)$", read(self.root / ".arch"), flags=re.MULTILINE))

    def exports(self) -> dict[str, str]:
        """Give the variables that CMake, tch and the loader look at."""
        loader = {"darwin": "DYLD_LIBRARY_PATH", "win32": "PATH"}.get(sys.platform, "LD_LIBRARY_PATH")
        return {
            "LIBTORCH": str(self.root),
            "LIBTORCH_CXX11_ABI": "1",
            "CMAKE_PREFIX_PATH": str(self.cmake),
            loader: os.pathsep.join(map(str, self.library_path)),
        }

    def facts(self) -> dict[str, object]:
        """Give everything about it, for `--json`."""
        return {
            "variant": self.variant,
            "path": str(self.root),
            "version": self.version,
            "cuda": self.cuda,
            "archs": self.archs,
            "source": self.source,
            "include": [str(folder) for folder in self.include],
            "lib": str(self.lib),
            "cmake_prefix": str(self.cmake),
            "environment": self.exports(),
        }


def variants(place: Store) -> list[Libtorch]:
    """Give every libtorch that there is, this Python's first."""
    found = [one for one in [of_this_python()] if one]
    for build in place.installed():
        found += [Libtorch(f"torch/{build}", folder) for folder in _wheels_in(place.environment(build))]
    for group in ("precompiled", "builds"):
        folders = sorted((place.root / "libtorch" / group).glob("*/lib"))
        found += [Libtorch(f"{group}/{lib.parent.name}", lib.parent) for lib in folders]
    return [libtorch for libtorch in found if libtorch.lib.is_dir()]


def active_variant(place: Store) -> str | None:
    """Give the variant in use: the one that was activated, else that of this Python."""
    return place.active("libtorch") or (THIS_PYTHON if of_this_python() else None)


def active(place: Store) -> Libtorch:
    """Give the libtorch in use."""
    name = active_variant(place)
    if name is None:
        raise SetupError(
            "no libtorch is active, and this Python has no torch. Install torch with `fdl setup`, or an "
            "archive with `fdl libtorch download`."
        )
    return find(place, name)


def find(place: Store, name: str) -> Libtorch:
    """Give a variant by its name, or a folder of libtorch by its path."""
    known = {libtorch.variant: libtorch for libtorch in variants(place)}
    if name in known:
        return known[name]
    if os.path.isabs(name) and (Path(name) / "lib").is_dir():
        return Libtorch(name, Path(name))
    raise SetupError(f"there is no libtorch {name!r}. {suggestion(name, known, known_as='variants')}")


def of_this_python() -> Libtorch | None:
    """Give the libtorch in the torch that this Python would import, without importing it."""
    spec = find_spec("torch")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Libtorch(THIS_PYTHON, Path(places[0])) if places and (Path(places[0]) / "lib").is_dir() else None


def _wheels_in(environment: Path) -> list[Path]:
    site = "Lib/site-packages" if os.name == "nt" else "lib/python*/site-packages"
    return sorted(environment.glob(f"{site}/torch"))[:1]
