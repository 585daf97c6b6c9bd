"""Declarations of the names by which a thread knows its place: warpgroup, warp, lane, leader."""

from __future__ import annotations

from tiledsl.codegen.emission import Place

__all__ = ["place_declarations"]


def place_declarations(place: Place, *, is_role: bool) -> list[str]:
    """The declarations of the names in use, in a fixed order."""
    forms = {
        "warpgroup": "" if is_role else "const u32 warpgroup = warpgroup_id();",
        "warp": f"const u32 warp = {_warp(place, is_role=is_role)};",
        "lane": "const u32 lane = lane_id();",
        "leader": "const bool leader = thread_in_group() == 0;",
    }
    return [form for name, form in forms.items() if name in place.used and form]


def _warp(place: Place, *, is_role: bool) -> str:
    """Index of the warp inside one instance of the role."""
    if not is_role:
        return "warp_id()"
    if place.dealt:
        last = f"{place.num_warps // place.num_ctas - 1} - warp_id()"
        return f"({last}) * {place.num_ctas} + cluster_rank()" if place.num_ctas > 1 else last
    if place.num_ctas > 1:
        return f"warp_id() + {place.num_warps // place.num_ctas} * cluster_rank()"
    if place.num_warps == 4:
        return "warp_in_group()"
    text = f"warp_id() - {4 * place.first_warpgroup}" if place.first_warpgroup else "warp_id()"
    if place.groups == place.num_warpgroups:
        return text
    return (
        f"({text}) % {place.num_warps}" if place.first_warpgroup else f"{text} % {place.num_warps}"
    )
