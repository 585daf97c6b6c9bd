"""The role that finds the numbers of a tile: one thread beside the load role, some tiles ahead.

A search may take longer than the products in the slots of a ring last. The load role would then
start the loads of a tile too late; here it waits for a number that has long been there.
"""

from __future__ import annotations

from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Value
from tiledsl.ir.ops.role import Role
from tiledsl.ws.dependence import unknown_to_loads
from tiledsl.ws.handed import Numbers
from tiledsl.ws.handed import put_numbers
from tiledsl.ws.plan import Plan
from tiledsl.ws.producer import ProducerBuilder
from tiledsl.ws.told_tiles import drawn_tiles

SEARCH = "search"
"""The name of the role."""
SEARCH_WARP = 2
"""Of the load warpgroup, beside the threads that load operands and tiles of the epilogue."""


def build_search(
    graph: TileGraph,
    builder: Builder,
    plan: Plan,
    mapping: dict[Value, Value],
    numbers: Numbers,
) -> Role:
    """The role, appended at the builder's insertion point."""
    role = Role(
        name=SEARCH,
        first_warpgroup=0,
        num_warpgroups=1,
        single_thread=True,
        warp=SEARCH_WARP,
    )
    builder.add(role)
    search = graph.body.ops[: graph.body.ops.index(numbers.consumers.loop)]
    with builder.at(role.body):
        maker = ProducerBuilder(builder, plan, {}, mapping, unknown_to_loads(graph, ()))
        if numbers.drawn:
            tiles = drawn_tiles(builder, numbers)
            with builder.at(tiles.body):
                maker.use_programs(maker.locate(tiles.tile, -1))
                maker.clone_into(search)
                tiles.put(builder, maker.map)
            tiles.end(builder)
            return role
        loop, body = maker.tile_loop()
        with builder.at(body):
            maker.clone_into(search)
            for handed in (numbers.loads, numbers.consumers):
                if handed is not None:
                    put_numbers(builder, handed, [maker.get(v) for v in handed.values])
        maker.end_tiles(loop, body)
    return role
