#!/usr/bin/env bash
# Prepares a Python environment and prints the path of its interpreter on standard output.
#
#   scripts/setup.sh [extra ...]      extras of pyproject.toml, such as: test dev
#
# An active virtual environment is used as it is; else .venv is made, with the packages of the
# system visible, so that a torch built for this machine's GPU is kept.  torch is installed only
# where `import torch` fails.  PYTHON chooses the interpreter that makes .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1

TORCH="torch==2.13.0"

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "setup: Python 3.11 or newer is needed; set PYTHON to one" >&2
    return 1
}

make_venv() {
    local base
    base="$(find_python)"
    echo "setup: making .venv with $("$base" --version)" >&2
    # Where ensurepip is split off, the system's pip serves inside the environment as well.
    "$base" -m venv --system-site-packages .venv >&2 ||
        "$base" -m venv --system-site-packages --without-pip --clear .venv >&2
}

if [[ -n "${VIRTUAL_ENV:-}" ]] && is_new_enough "$VIRTUAL_ENV/bin/python"; then
    python="$VIRTUAL_ENV/bin/python"
else
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        make_venv
    fi
    python="$PWD/.venv/bin/python"
fi

requirements="$(mktemp)"
trap 'rm -f "$requirements"' EXIT
"$python" - "$@" >"$requirements" <<'PY'
import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
wanted = list(project["dependencies"])
for extra in sys.argv[1:]:
    wanted += project["optional-dependencies"][extra]
print(*(r for r in wanted if not r.startswith("torch")), sep="\n")
PY
if ! "$python" -c 'import torch' >/dev/null 2>&1; then
    echo "$TORCH" >>"$requirements"
fi
# pip asks no index where everything is already there.
"$python" -m pip install --quiet --requirement "$requirements" >&2
echo "$python"
