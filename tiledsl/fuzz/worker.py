"""A process that runs cases: `python -m tiledsl.fuzz.worker CONFIG`, asked line by line.

Each line of standard input is the number of a case, or the text of one; each answer is a line of
JSON after a mark. After an error that may have broken the CUDA context the worker says so and ends.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

import numpy as np

from tiledsl.fuzz.case import Argument
from tiledsl.fuzz.case import Case
from tiledsl.fuzz.device import to_device
from tiledsl.fuzz.generate import generate
from tiledsl.fuzz.levels import run_case
from tiledsl.fuzz.outcome import Finding
from tiledsl.fuzz.outcome import Levels
from tiledsl.fuzz.outcome import Outcome

MARK = "@fuzz "
LAUNCHING = '{"launching": true}'
"""Says that a case is compiled, and is launched from now on."""
RECURSION = 20_000


def case_of(text: str) -> Case:
    """A case from its printed form."""
    made: Any = eval(text, {"Case": Case, "Argument": Argument})
    assert isinstance(made, Case)
    return made


def outcome_of(answer: dict[str, Any]) -> Outcome:
    """An outcome from its JSON form."""
    found = [Finding(**f) for f in answer.pop("findings")]
    return Outcome(**answer, findings=found)


def context_is_dead() -> bool:
    """Whether CUDA calls of this process fail from now on."""
    try:
        to_device(np.zeros(1, np.float32)).cpu()
    except RuntimeError:
        return True
    return False


def main() -> None:
    """Answers until there is no more to do."""
    sys.setrecursionlimit(RECURSION)
    config = json.loads(sys.argv[1])
    levels = Levels(**config["levels"])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if levels.device:
        context_is_dead()  # makes the context before the clock of the first case runs
    print(MARK + "{}", file=out, flush=True)
    for line in sys.stdin:
        asked: str = json.loads(line)
        if asked.isdigit():
            case = generate(config["seed"], int(asked), config["only"])
        else:
            case = case_of(asked)
        made = run_case(case, levels, lambda: print(MARK + LAUNCHING, file=out, flush=True))
        dead = levels.device and bool(made.findings) and context_is_dead()
        print(MARK + json.dumps({"outcome": asdict(made), "dead": dead}), file=out, flush=True)
        if dead:
            break
    os._exit(0)  # without the clean-up of a context that may hang


if __name__ == "__main__":
    main()
