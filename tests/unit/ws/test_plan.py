"""Plans with other values."""

from __future__ import annotations

import dataclasses

import pytest

from tiledsl.ws.plan import Plan
from tiledsl.ws.plan import revised


def test_revised_is_replace():
    plan = Plan(num_consumers=2, ping_pong=True)
    for changes in ({}, {"deferred": True}, {"num_stages": 7, "unit_axes": (1,)}):
        made = revised(plan, **changes)
        assert made == dataclasses.replace(plan, **changes)
        assert hash(made) == hash(dataclasses.replace(plan, **changes))
    assert plan == Plan(num_consumers=2, ping_pong=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        revised(plan).deferred = True


def test_fields_that_do_not_exist():
    with pytest.raises(TypeError, match="a plan has no num_stage"):
        revised(Plan(), num_stage=3)


def test_a_plan_is_its_fields():
    assert set(vars(Plan())) == {field.name for field in dataclasses.fields(Plan)}
    assert not hasattr(Plan, "__post_init__")
