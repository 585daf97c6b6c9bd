"""Numpy views of tensors share memory, for every dtype and stride."""

import numpy as np
import pytest
import torch

from tiledsl import dtypes
from tiledsl.errors import LaunchError
from tiledsl.runtime.interop import from_numpy
from tiledsl.runtime.interop import numpy_view
from tiledsl.runtime.interop import storage_view
from tiledsl.runtime.signature import FROM_TORCH
from tiledsl.runtime.signature import TO_TORCH


@pytest.mark.parametrize("dtype", list(FROM_TORCH), ids=str)
def test_values_and_stores(dtype):
    tensor = torch.zeros(4, 6, dtype=dtype)
    view = numpy_view(tensor)
    assert view.dtype == FROM_TORCH[dtype].numpy
    view[1, 2] = 1
    assert tensor[1, 2].to(torch.float32) == 1
    assert tensor.to(torch.float32).sum() == 1


def strided(base):
    return {
        "transposed": base.t(),
        "sliced": base[1:7:2, 3:],
        "expanded": base[:1].expand(4, 8),
        "column": base[:, 2],
        "scalar": base[2, 3],
        "empty": base[:0],
        "diagonal": torch.as_strided(base, (4,), (9,), 2),
    }


@pytest.mark.parametrize("name", list(strided(torch.zeros(8, 8))))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_strides(name, dtype):
    tensor = strided(torch.arange(64).reshape(8, 8).to(torch.float32).to(dtype))[name]
    view = numpy_view(tensor)
    assert view.shape == tuple(tensor.shape)
    want = tensor.to(torch.float32).numpy()
    np.testing.assert_array_equal(view.astype(np.float32), want)


def test_storage():
    base = torch.arange(10, dtype=torch.float32)
    view = storage_view(base[3:5])
    assert view.offset == 3
    assert view.flat.shape == (10,)
    view.flat[view.offset - 1] = 99
    assert base[2] == 99


def test_memory_outlives_the_tensor():
    view = numpy_view(torch.full((1000,), 7.0))
    torch.zeros(1000)
    assert (view == 7).all()


def test_requires_grad():
    tensor = torch.zeros(3, requires_grad=True)
    numpy_view(tensor)[0] = 2
    assert tensor[0] == 2


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_from_numpy(dtype):
    array = np.zeros(3, dtype.numpy)
    tensor = from_numpy(array)
    assert tensor.dtype == TO_TORCH[dtype]
    array[1] = 1
    assert tensor[1].to(torch.float32) == 1


def test_errors():
    with pytest.raises(LaunchError, match="argument x is on meta"):
        numpy_view(torch.empty(2, device="meta"), "x")
    with pytest.raises(LaunchError, match=r"argument x: dtype torch\.complex64"):
        numpy_view(torch.empty(2, dtype=torch.complex64), "x")
    with pytest.raises(LaunchError, match="no torch form"):
        from_numpy(np.zeros(2, np.complex64))
