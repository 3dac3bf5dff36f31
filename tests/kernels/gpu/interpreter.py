"""Make Triton's interpreter right about bfloat16 and fp8, or loud where it is not.

The interpreter keeps bfloat16 as raw 16-bit integers. Loads, stores and widening to float32 are right; rounding to
bfloat16 truncates, ``tl.dot`` multiplies the bits, and so does all arithmetic. Here conversions and dots get the values
of a GPU, and any other arithmetic on bfloat16 raises: a kernel should widen to float32 first, on a GPU too. Float32
rounded to fp8 (e4m3) comes out wrong where a carry or a subnormal is involved; here it is what torch, and a GPU, makes.

Triton 3.6 also turns a loaded scalar, an array of one element, into a loop bound in a way that numpy 2.4 refuses. And
every call of a function by a kernel prepares ``triton.language`` anew, which takes longer than most functions; here
once a launch and module is enough. What a type of an element is to numpy, and which members of a module are to be
prepared, is looked up once instead of at every operation and launch.

Import after ``TRITON_INTERPRET=1`` is in the environment; ``install()`` patches the interpreter of this process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import (
    GridExecutor,
    InterpretedFunction,
    InterpreterBuilder,
    ReduceScanOpInterface,
    TensorHandle,
)


def widen(bits: np.ndarray) -> np.ndarray:
    """Bfloat16 bits (uint16) as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: np.ndarray) -> np.ndarray:
    """Float32 rounded to bfloat16 bits (uint16): to nearest, ties to even."""
    flat = torch.from_numpy(np.array(values, dtype=np.float32).reshape(-1))
    return flat.to(torch.bfloat16).view(torch.uint16).numpy().reshape(values.shape)


def refuse(*handles: Any) -> None:
    if any(isinstance(handle, TensorHandle) and handle.dtype.scalar == tl.bfloat16 for handle in handles):
        raise TypeError("arithmetic on bfloat16 in a kernel: widen to float32 first")


def numpy_type(kind: Any) -> np.dtype:
    """The numpy type that holds elements of a scalar or block type."""
    if isinstance(kind, tl.block_type):
        kind = kind.element_ty
    if isinstance(kind, tl.pointer_type):
        return np.dtype(np.uint64)
    return NUMPY_TYPES[kind.name]


SCALARS = (*tl.dtype.SINT_TYPES, *tl.dtype.UINT_TYPES, *tl.dtype.FP_TYPES)
NUMPY_TYPES = {name: interpreter._get_np_dtype(tl.dtype(name)) for name in SCALARS}


@cache
def builtins_of(package: Any) -> list[tuple[str, Any]]:
    """What the interpreter replaces in ``package``; first asked while nothing is replaced."""
    return [(name, member) for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]


def patch_builtins(package: Any, builder: Any, scope: Any) -> None:
    for name, member in builtins_of(package):
        interpreter._patch_attr(package, name, member, builder, scope)


def install() -> None:
    convert_float = interpreter._convert_float
    create_dot = InterpreterBuilder.create_dot
    binary_op = InterpreterBuilder.binary_op
    unary_op = InterpreterBuilder.unary_op
    create_fma = InterpreterBuilder.create_fma
    apply = ReduceScanOpInterface.apply
    patch_tensor = interpreter._patch_lang_tensor
    launch = GridExecutor.__call__
    prepared: set[str] = set()

    def convert(data: np.ndarray, source: tl.dtype, target: tl.dtype, rounding: Any) -> np.ndarray:
        if (source, target) == (tl.bfloat16, tl.float32):
            return widen(data)
        if (source, target) == (tl.float32, tl.bfloat16):
            return narrow(data)
        if (source, target) == (tl.float8e4nv, tl.float32):
            return torch.from_numpy(np.array(data)).view(torch.float8_e4m3fn).float().numpy()
        if (source, target) == (tl.float32, tl.float8e4nv):
            return torch.from_numpy(np.array(data)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        return convert_float(data, source, target, rounding)

    def operand(handle: TensorHandle) -> TensorHandle:
        return TensorHandle(widen(handle.data), tl.float32) if handle.dtype.scalar == tl.bfloat16 else handle

    def dot(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *rest: Any) -> TensorHandle:
        return create_dot(self, operand(a), operand(b), *rest)

    def refusing(operation: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(self: Any, *args: Any) -> Any:
            refuse(*args)
            return operation(self, *args)

        return guarded

    def reduce(self: ReduceScanOpInterface, values: Any) -> Any:
        refuse(*(value.handle for value in (values if isinstance(values, tuple) else (values,))))
        return apply(self, values)

    def patch_tensor_with_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def launch_anew(self: GridExecutor, *args: Any, **kwargs: Any) -> None:
        prepared.clear()
        launch(self, *args, **kwargs)

    def call(self: InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
        if self.fn.__module__ not in prepared:
            prepared.add(self.fn.__module__)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    GridExecutor.__call__ = launch_anew
    InterpretedFunction.__call__ = call
    interpreter._convert_float = convert
    interpreter._get_np_dtype = numpy_type
    interpreter._patch_builtin = patch_builtins
    interpreter._patch_lang_tensor = patch_tensor_with_index
    InterpreterBuilder.create_dot = dot
    InterpreterBuilder.binary_op = refusing(binary_op)
    InterpreterBuilder.unary_op = refusing(unary_op)
    InterpreterBuilder.create_fma = refusing(create_fma)
    ReduceScanOpInterface.apply = reduce
