//! Device memory behind which nothing is mapped, so that an access there is a fault.
use std::ffi::{CStr, c_int, c_uint, c_ulonglong, c_void};
use std::{mem, ptr};

use half::bf16;

use crate::common::cuda::{self, Stream};

// Of the driver API.
type Status = c_int;
type Address = c_ulonglong;

#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_int,
    device: c_int,
}

#[repr(C)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    metadata: *const c_void,
    flags: [u8; 8],
}

#[repr(C)]
struct Access {
    location: Location,
    flags: c_int,
}

const DEVICE: Location = Location { kind: 1, device: 0 };
const PINNED: Properties =
    Properties { kind: 1, handle_types: 0, location: DEVICE, metadata: ptr::null(), flags: [0; 8] };
const READ_WRITE: Access = Access { location: DEVICE, flags: 3 };

unsafe extern "C" {
    fn cudaGetDriverEntryPointByVersion(
        name: *const std::ffi::c_char,
        function: *mut *mut c_void,
        version: c_uint,
        flags: c_ulonglong,
        found: *mut c_int,
    ) -> cuda::Error;
}

fn entry(name: &CStr) -> *mut c_void {
    let (mut function, mut found) = (ptr::null_mut(), -1);
    // SAFETY: writes a pointer and a number.
    cuda::ok(unsafe { cudaGetDriverEntryPointByVersion(name.as_ptr(), &mut function, 12000, 0, &mut found) });
    assert!(found == 0 && !function.is_null(), "the driver has no {name:?}");
    function
}

/// Calls a function of the driver, which must succeed.
macro_rules! driver {
    ($name:literal, ($($type:ty),*), $($argument:expr),*) => {{
        // SAFETY: the driver's function of this name has this signature.
        let status = unsafe {
            let function: unsafe extern "C" fn($($type),*) -> Status = mem::transmute(entry($name));
            function($($argument),*)
        };
        assert_eq!(status, 0, "{:?}", $name);
    }};
}

/// bf16 elements on device 0 that end with their memory.
pub struct Fenced {
    reserved: Address,
    granule: usize,
    size: usize,
    handle: c_ulonglong,
    bytes: usize,
}

impl Fenced {
    pub fn new(data: &[bf16], stream: &Stream) -> Fenced {
        let (mut granule, mut reserved, mut handle) = (0, 0, 0);
        driver!(c"cuMemGetAllocationGranularity", (*mut usize, *const Properties, c_int), &mut granule, &PINNED, 0);
        let size = size_of_val(data).next_multiple_of(granule);
        driver!(
            c"cuMemAddressReserve",
            (*mut Address, usize, usize, Address, c_ulonglong),
            &mut reserved,
            size + granule,
            0,
            0,
            0
        );
        driver!(
            c"cuMemCreate",
            (*mut c_ulonglong, usize, *const Properties, c_ulonglong),
            &mut handle,
            size,
            &PINNED,
            0
        );
        driver!(c"cuMemMap", (Address, usize, usize, c_ulonglong, c_ulonglong), reserved, size, 0, handle, 0);
        driver!(c"cuMemSetAccess", (Address, usize, *const Access, usize), reserved, size, &READ_WRITE, 1);
        let fenced = Fenced { reserved, granule, size, handle, bytes: size_of_val(data) };
        fenced.write(data, stream);
        fenced
    }

    fn write(&self, data: &[bf16], stream: &Stream) {
        const TO_DEVICE: c_int = 1;
        // SAFETY: as many bytes on both sides, and the wait outlasts the copy.
        cuda::ok(unsafe {
            cuda::cudaMemcpyAsync(self.address(), data.as_ptr().cast(), self.bytes, TO_DEVICE, stream.handle())
        });
        stream.synchronize();
    }

    pub fn address(&self) -> *mut c_void {
        (self.reserved as usize + self.size - self.bytes) as *mut c_void
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return; // after a fault nothing can be freed
        }
        driver!(c"cuMemUnmap", (Address, usize), self.reserved, self.size);
        driver!(c"cuMemRelease", (c_ulonglong), self.handle);
        driver!(c"cuMemAddressFree", (Address, usize), self.reserved, self.size + self.granule);
    }
}
