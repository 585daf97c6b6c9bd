"""Joins and reshapes that follow on each other and need no exchange between threads."""

import torch

import tiledsl
import tiledsl.language as tl


@tiledsl.jit
def unpack_nibbles(q, o, N: tl.constexpr):
    row = tl.arange(0, 32)[:, None]
    col = tl.arange(0, 32)[None, :]
    words = tl.load(q + row * 32 + col)
    words = tl.interleave(words, words)
    words = tl.interleave(words, words)
    words = tl.interleave(words, words)
    shifts = (tl.arange(0, 256) % 8 * 4)[None, :]
    at = row * 256 + tl.arange(0, 256)[None, :]
    tl.store(o + at, (words >> shifts) & 15)


def test_interleaves_in_a_row_stay_in_their_threads() -> None:
    q = torch.randint(-(2**31), 2**31 - 1, (32, 32), dtype=torch.int32)
    o = torch.full((32, 256), -1, dtype=torch.int32)
    text = unpack_nibbles.compile(q, o, 0, grid=(1,)).module.source.partition('extern "C"')[2]
    assert text.count("write_shared") == 0, "words are loaded where the result is stored"
    unpack_nibbles[(1,)](q, o, 0)
    want = (q[:, :, None] >> (torch.arange(8) * 4)) & 15
    assert torch.equal(o, want.reshape(32, 256).int())
