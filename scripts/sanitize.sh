#!/usr/bin/env bash
# Runs compute-sanitizer's memcheck and synccheck over the example kernels, on a machine with a Hopper
# GPU. Other tools: scripts/sanitize.sh racecheck initcheck (docs/verification.md says how to read them).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -z "${PYTHON:-}" ]; then
  PYTHON=$(command -v python3)
  [ -x .venv/bin/python ] && PYTHON=.venv/bin/python
fi
exec "$PYTHON" scripts/sanitize.py "$@"
