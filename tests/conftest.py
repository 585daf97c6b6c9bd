"""Options, markers and fixtures that all tests share."""

from __future__ import annotations

import difflib
import functools
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.scripts import MODULES
from tests.scripts import Scripts

# A process of the tests has one core; threads of numpy and torch that wait for work take those of others.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"

# Slow machines are no failures; under CI the same examples run each time.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite golden files that differ instead of failing (refused when CI is set)",
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("TILEDSL_CHECK", "1")  # around every pass
    if "TILEDSL_CACHE_DIR" not in os.environ:  # workers share the folder of the first process
        os.environ["TILEDSL_CACHE_DIR"] = tempfile.mkdtemp(prefix="tiledsl-tests-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ["TILEDSL_CACHE_DIR"], True))
    if config.getoption("--update-golden") and os.environ.get("CI"):
        raise pytest.UsageError("--update-golden is refused under CI: golden files are reviewed")


@functools.cache
def missing_gpu() -> str | None:
    """Why GPU tests cannot run here, or None when they can."""
    import torch

    if not torch.cuda.is_available():
        return "needs a GPU: torch sees no CUDA device"
    capability = torch.cuda.get_device_capability()
    if capability[0] != 9:
        return f"needs compute capability 9.0, the device has {capability[0]}.{capability[1]}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by their folder (gpu/, nvrtc/, bench/) and skips GPU tests where none can run."""
    for item in items:
        if item.path.is_relative_to(TESTS):
            folder = item.path.relative_to(TESTS).parts[0]
            if folder in ("gpu", "nvrtc", "bench"):
                item.add_marker(folder)
        needs_gpu = item.get_closest_marker("gpu") or item.get_closest_marker("bench")
        if needs_gpu and (reason := missing_gpu()):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end; the collector of garbage need not look at them again."""
    gc.collect()
    gc.freeze()


class Golden:
    """Compares texts with the files under tests/golden/."""

    def __init__(self, *, update: bool) -> None:
        self.update = update

    def path(self, name: str | Path) -> Path:
        """The file of a name such as `ops/mma/dot.cu`; an absolute path stands for itself."""
        return GOLDEN / name

    def __call__(self, actual: str, name: str | Path) -> None:
        """Fails with a unified diff unless `actual` equals the file; rewrites it on request."""
        path = self.path(name)
        expected = path.read_text(encoding="utf-8") if path.exists() else None
        if actual == expected:
            return
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(actual, encoding="utf-8")
            return
        pytest.fail(self._explain(actual, expected, path), pytrace=False)

    @staticmethod
    def _explain(actual: str, expected: str | None, path: Path) -> str:
        shown = path.relative_to(TESTS.parent) if path.is_relative_to(TESTS.parent) else path
        advice = "run pytest --update-golden and review the diff"
        if expected is None:
            return f"{shown} does not exist; {advice}\n\n{actual}"
        diff = difflib.unified_diff(
            expected.splitlines(), actual.splitlines(), str(shown), "actual", lineterm=""
        )
        lines = list(diff) or ["(the texts differ in line ends only)"]
        return "\n".join([f"{shown} differs; {advice}", *lines])


@pytest.fixture(scope="session")
def scripts() -> Iterator[Scripts]:
    """`scripts.run(path)` runs a file as `python path` does."""
    started = Scripts(*MODULES)
    yield started
    started.close()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(text, "ops/mma/dot.cu")` compares text with tests/golden/ops/mma/dot.cu."""
    return Golden(update=request.config.getoption("--update-golden"))
