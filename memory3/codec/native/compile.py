"""Compile decode.c and search.c: at build or install, or by `python -m memory3.codec.native.compile`.

The standard library only: the build of the package runs this file alone, by its path (`hatch_build.py`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SOURCES = (FOLDER / "decode.c", FOLDER / "search.c")
"""The first includes the loops of decode_rows.h."""
LIBRARY = "_decode.so"
"""The same for every Python: it is loaded by ctypes and does not use Python's C interface."""
# Not for this machine's processor: they have a loop for each instruction set, chosen when it is called.
# No C library is needed to compile, link or load, so a library made with glibc also loads with musl.
FLAGS = ("-std=gnu11", "-O3", "-ffreestanding", "-fno-stack-protector", "-fPIC", "-shared", "-nostdlib")


def compiler() -> list[str] | None:
    """The C compiler's command: of the environment variable CC, else the first of cc, gcc and clang that is here."""
    wanted = shlex.split(os.environ.get("CC", ""))
    for command in [wanted] if wanted else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    return None


def compile_library(target: Path) -> str:
    """Write the library to `target`; returns why not, or the empty string when it is there."""
    command = compiler()
    if command is None:
        return "no C compiler is here (cc, gcc or clang; CC names another)"
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    call = [*command, *FLAGS, *map(str, SOURCES), "-lgcc", "-o", str(partial)]
    try:
        done = subprocess.run(call, capture_output=True, text=True, errors="replace", check=False, timeout=300)
        if done.returncode:
            return f"{shlex.join(call)} failed:\n{done.stderr.strip()}"
        partial.replace(target)  # programs that have the old one loaded keep it
    except (OSError, subprocess.SubprocessError) as error:
        return f"{shlex.join(call)} failed: {error}"
    finally:
        partial.unlink(missing_ok=True)
    return ""


def wheel_tag() -> str:
    """The tag of a wheel with the library: any Python 3, on the machine that the compiler compiles for.

    Any Linux, for it needs no C library; with CC=aarch64-linux-gnu-gcc one for that processor. Elsewhere this platform.
    """
    command = compiler()
    machine = subprocess.run([*command, "-dumpmachine"], capture_output=True, text=True).stdout if command else ""
    if "linux" in machine:
        return f"py3-none-manylinux_2_17_{machine.split('-')[0]}"
    return f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


if __name__ == "__main__":
    failed = compile_library(FOLDER / LIBRARY)
    print(failed or f"wrote {FOLDER / LIBRARY}", file=sys.stderr if failed else sys.stdout)
    sys.exit(1 if failed else 0)
