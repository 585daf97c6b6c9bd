"""Warp specialisation: decisions as frozen plans, and the rewrites that apply them."""
