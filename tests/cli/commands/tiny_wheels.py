"""Wheels that a real pip installs in a moment."""

import zipfile


def make_wheel(folder, name, version, files):
    """Write a wheel with these files; INFO in a path stands for its metadata folder."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        info = f"{name}-{version}.dist-info"
        for path, text in files.items():
            wheel.writestr(path.replace("INFO", info), text)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


TORCH = """
from types import SimpleNamespace
__version__ = "2.13.0+cpu"
version = SimpleNamespace(cuda=None, hip=None)
cuda = SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)
backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))
get_num_threads = lambda: 1
"""
