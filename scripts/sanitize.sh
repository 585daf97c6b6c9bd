#!/usr/bin/env bash
# Runs compute-sanitizer's memcheck and synccheck over the example kernels, on a machine with a Hopper
# GPU. Other tools: scripts/sanitize.sh racecheck initcheck (docs/verification.md says how to read them).
set -euo pipefail
cd "$(dirname "$0")/.."

sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
if [ ! -x "$sanitizer" ]; then
  echo "compute-sanitizer is not installed: it comes with the CUDA toolkit (or set COMPUTE_SANITIZER)" >&2
  exit 2
fi
python=${PYTHON:-python}
[ -x .venv/bin/python ] && [ -z "${PYTHON:-}" ] && python=.venv/bin/python
tools=("$@")
[ ${#tools[@]} -eq 0 ] && tools=(memcheck synccheck)

export TILEDSL_CACHE_DIR=${TILEDSL_CACHE_DIR:-$(mktemp -d)}
failed=0
for tool in "${tools[@]}"; do
  for example in vector_add matmul epilogue back_to_back gated_mlp attention causal_attention linear_attention; do
    log=$(mktemp)
    if "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 5 \
      "$python" "examples/$example.py" >"$log" 2>&1; then
      echo "ok    $tool  $example"
    else
      failed=1
      echo "FAIL  $tool  $example"
      grep '^=========' "$log" | head -20 || tail -20 "$log"
    fi
    rm -f "$log"
  done
done
exit $failed
