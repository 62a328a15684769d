"""gm_rms_norm from Python with nothing but ctypes: python3 rms_norm.py [path of libgatemix.so.1]"""

import array
import ctypes
import sys

F32, CPU = 3, 1  # GM_F32, GM_BACKEND_CPU


class Tensor(ctypes.Structure):
    """gm_tensor"""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 4),
        ("stride", ctypes.c_int64 * 4),
    ]


class Exec(ctypes.Structure):
    """gm_exec"""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("backend", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("parallel", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_size", ctypes.c_size_t),
        ("flags", ctypes.c_uint32),
    ]


gm = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libgatemix.so.1")
gm.gm_last_error.restype = gm.gm_last_kernel.restype = ctypes.c_char_p
gm.gm_rms_norm.argtypes = [
    ctypes.POINTER(Exec),
    ctypes.POINTER(Tensor),
    ctypes.POINTER(Tensor),
    ctypes.c_float,
    ctypes.POINTER(Tensor),
]


def matrix(values, rows, columns):
    """A contiguous f32 tensor over an array('f'), which must outlive it."""
    address, _ = values.buffer_info()
    return Tensor(address, F32, 2, (rows, columns), (columns, 1))


x = array.array("f", [3, 4, 6, 8])
y = array.array("f", [0] * 4)
where = Exec(struct_size=ctypes.sizeof(Exec), backend=CPU)
if gm.gm_rms_norm(where, matrix(x, 2, 2), None, 0.0, matrix(y, 2, 2)) != 0:
    sys.exit(gm.gm_last_error().decode())
print(gm.gm_last_kernel().decode(), list(y))
# Rows (3, 4) and (6, 8) have one direction, hence one result: each over its root mean square, 5 / sqrt(2).
assert y[0] == y[2] and abs(y[0] - 3 * 2**0.5 / 5) < 1e-6
