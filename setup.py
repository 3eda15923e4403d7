"""Build of the compiled core, if there is a compiler. Everything else is in pyproject.toml.

TIEREDSTORE_PURE=1: a wheel without it, for every platform (py3-none-any).
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

for link in ("tieredstore/providers", "tieredstore/metadata"):
    if Path(link).is_file():
        sys.exit(
            f"{link} is a file, expected a symbolic link: "
            "clone again with `git clone -c core.symlinks=true`, on Windows in WSL"
        )

CORE = Extension(
    "tieredstore.message._core",
    [f"tieredstore/message/{name}.c" for name in ("_core", "_index", "_puts")],
    depends=["tieredstore/message/_core.h"],
    optional=True,
)

setup(ext_modules=[] if os.environ.get("TIEREDSTORE_PURE") == "1" else [CORE])
