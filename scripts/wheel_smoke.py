"""Checks an installed wheel: every template is in it, and one renders from the packaged copy.

Usage: wheel_smoke.py SITE, the folder that `pip install --target` filled.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def check_files(package: Path) -> int:
    """Compares tiledsl/_templates of the wheel with templates/ here; the number of files."""
    here = {
        p.relative_to(ROOT / "templates") for p in (ROOT / "templates").rglob("*") if p.is_file()
    }
    packed = package / "_templates"
    there = {p.relative_to(packed) for p in packed.rglob("*") if p.is_file()}
    if here != there:
        raise SystemExit(f"wheel: templates differ: {sorted(map(str, here ^ there))}")
    return len(there)


def check_import(site: Path) -> None:
    """Imports tiledsl from the wheel alone, loads every template and renders one."""
    sys.path[:] = [str(site), *(p for p in sys.path if Path(p or ".").resolve() not in _ours())]
    import tiledsl

    if not Path(tiledsl.__file__ or "").is_relative_to(site):
        raise SystemExit(f"wheel: imported {tiledsl.__file__} instead of the wheel")
    from tiledsl import dtypes
    from tiledsl.codegen import wgmma
    from tiledsl.codegen.environment import environment

    env = environment()
    names = [n for n in env.list_templates() if n.endswith(".j2")]
    for name in names:
        template = env.get_template(name)
        if not Path(template.filename or "").is_relative_to(site):
            raise SystemExit(f"wheel: {name} comes from {template.filename}")
    print(f"wheel: {len(names)} templates load from the package")
    bf16, f32 = dtypes.bfloat16, dtypes.float32
    form = wgmma.wgmma_shape(f32, bf16, bf16, 256, a_in_regs=False, trans_a=False, trans_b=False)
    if form.name not in wgmma.render_wgmma([form]):
        raise SystemExit("wheel: the rendered prelude lacks its function")
    print(f"wheel: rendered {form.name}")


def _ours() -> set[Path]:
    return {ROOT, ROOT / "scripts"}


def main() -> None:
    """Runs both checks."""
    site = Path(sys.argv[1]).resolve()
    count = check_files(site / "tiledsl")
    print(f"wheel: {count} files of templates/ are packed")
    check_import(site)


if __name__ == "__main__":
    main()
