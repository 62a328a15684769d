"""gatemix's operators on torch tensors, through ctypes."""

import ctypes

CUDA = 2  # GM_BACKEND_CUDA
FLAGS = {"portable": 1, "pdl": 4, "batch_invariant": 8}  # GM_PORTABLE, GM_PDL, GM_BATCH_INVARIANT
HEAD_ROUNDED, HEAD_FP32 = 0, 1
DTYPES = {"torch.bfloat16": 1, "torch.float16": 2, "torch.float32": 3}


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


# Arguments after gm_exec. t: a tensor or None, f: float, i: int32_t, l: int64_t.
SIGNATURES = {
    "gm_gated_mla": "tttt",
    "gm_rms_norm": "ttft",
    "gm_hc_collapse": "ttt",
    "gm_hc_head": "ttttffit",
    "gm_mhc_pre_mix": "ttttlfft",
    "gm_mhc_post_collapse_rms_norm": "ttttttftt",
}
TYPES = {"t": ctypes.POINTER(Tensor), "f": ctypes.c_float, "i": ctypes.c_int32, "l": ctypes.c_int64}


class GatemixError(RuntimeError):
    pass


def describe(tensor):
    """A gm_tensor over a torch tensor, which must outlive it."""
    rank = tensor.dim()
    return Tensor(
        tensor.data_ptr(),
        DTYPES[str(tensor.dtype)],
        rank,
        (ctypes.c_int64 * 4)(*tensor.shape),
        (ctypes.c_int64 * 4)(*tensor.stride()),
    )


class Gatemix:
    """A build of libgatemix.so on a stream (an address, such as torch's cuda_stream)."""

    def __init__(self, path, stream=None, flags=0, device=0):
        self.library = ctypes.CDLL(path)
        for name in ("gm_version", "gm_build_info", "gm_last_error", "gm_last_kernel"):
            getattr(self.library, name).restype = ctypes.c_char_p
        for name, signature in SIGNATURES.items():
            getattr(self.library, name).argtypes = [ctypes.POINTER(Exec)] + [TYPES[letter] for letter in signature]
        self.exec = Exec(ctypes.sizeof(Exec), CUDA, device, stream, None, None, 0, flags)
        if self.library.gm_backend_status(CUDA, device) != 0:
            raise GatemixError(f"{path}: {self.last_error()}")

    def build_info(self):
        return self.library.gm_build_info().decode()

    def last_error(self):
        return self.library.gm_last_error().decode()

    def last_kernel(self):
        return self.library.gm_last_kernel().decode()

    def bind(self, name, *arguments):
        """A call without arguments, cheap enough for a graph of thousands."""
        function = getattr(self.library, name)
        values = [describe(a) if hasattr(a, "data_ptr") else a for a in arguments]
        where = ctypes.byref(self.exec)

        def call(_alive=arguments):
            if function(where, *values) != 0:
                raise GatemixError(self.last_error())

        return call
