"""`TensorDescriptor` under the path that Triton's users import it from."""

from tiledsl.runtime.descriptor import TensorDescriptor

__all__ = ["TensorDescriptor"]
