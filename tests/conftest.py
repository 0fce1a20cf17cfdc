"""What holds for every test: nobody looks for a newer flodl, and setuptools comes before distutils."""

import os
import warnings
from contextlib import suppress

os.environ["FDL_NO_UPDATE_CHECK"] = "1"

# torch's compiler imports setuptools, which refuses to come after Python's own distutils, and looking for pip
# brings just that one in. In a test process both happen, in an order that nobody chooses.
with warnings.catch_warnings(), suppress(ImportError):
    warnings.simplefilter("ignore")
    import setuptools  # noqa: F401
