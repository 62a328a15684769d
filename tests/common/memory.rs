//! Allocations with a purpose: fenced ones, at whose end a stray access is a fault, and huge ones.
use std::alloc::Layout;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};

thread_local! {
    static FENCED: Cell<bool> = const { Cell::new(false) };
}

/// Ends every [`Block`] that `run` makes on this thread at a page that can't be accessed.
#[cfg(target_os = "linux")]
pub fn fenced<T>(run: impl FnOnce() -> T) -> T {
    FENCED.set(true);
    let result = run();
    FENCED.set(false);
    result
}

pub enum Block<E> {
    Heap(Vec<E>),
    Fenced(Fenced<E>),
}

impl<E: Copy> Block<E> {
    /// `len` elements, and `extra` more unless a fence follows.
    pub fn new(len: usize, extra: usize, fill: E) -> Block<E> {
        if FENCED.get() { Block::Fenced(Fenced::new(len, fill)) } else { Block::Heap(vec![fill; len + extra]) }
    }
}

impl<E> Deref for Block<E> {
    type Target = [E];
    fn deref(&self) -> &[E] {
        match self {
            Block::Heap(data) => data,
            // SAFETY: mapped and initialised by new.
            Block::Fenced(block) => unsafe { std::slice::from_raw_parts(block.data, block.len) },
        }
    }
}

impl<E> DerefMut for Block<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        match self {
            Block::Heap(data) => data,
            // SAFETY: as above, and exclusive like self.
            Block::Fenced(block) => unsafe { std::slice::from_raw_parts_mut(block.data, block.len) },
        }
    }
}

pub struct Fenced<E> {
    data: *mut E,
    len: usize,
    map: *mut u8,
    /// Of the map without its fence.
    bytes: usize,
}

// SAFETY: like Vec<E>.
unsafe impl<E: Send> Send for Fenced<E> {}
// SAFETY: like Vec<E>.
unsafe impl<E: Sync> Sync for Fenced<E> {}

/// A multiple of every page size.
const PAGE: usize = 1 << 16;

#[cfg(target_os = "linux")]
unsafe extern "C" {
    fn mmap(address: *mut u8, bytes: usize, protection: i32, flags: i32, file: i32, offset: i64) -> *mut u8;
    fn mprotect(address: *mut u8, bytes: usize, protection: i32) -> i32;
    fn munmap(address: *mut u8, bytes: usize) -> i32;
}

#[cfg(target_os = "linux")]
impl<E: Copy> Fenced<E> {
    fn new(len: usize, fill: E) -> Fenced<E> {
        const NONE: i32 = 0;
        const READ_WRITE: i32 = 3;
        const PRIVATE_ANONYMOUS: i32 = 0x22;
        let bytes = (len * size_of::<E>()).next_multiple_of(PAGE);
        // SAFETY: new pages, the last of which become the fence.
        unsafe {
            let map = mmap(std::ptr::null_mut(), bytes + PAGE, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0);
            assert!(map.addr() != usize::MAX, "no address space for {bytes} bytes");
            assert_eq!(mprotect(map.add(bytes), PAGE, NONE), 0);
            let data = map.add(bytes).cast::<E>().sub(len);
            (0..len).for_each(|i| data.add(i).write(fill));
            Fenced { data, len, map, bytes }
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl<E: Copy> Fenced<E> {
    fn new(_: usize, _: E) -> Fenced<E> {
        unreachable!("only Linux has fenced()")
    }
}

impl<E> Drop for Fenced<E> {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        // SAFETY: mapped by new.
        unsafe {
            munmap(self.map, self.bytes + PAGE);
        }
    }
}

/// A large zeroed allocation of which only the touched pages take memory.
pub struct Sparse<E> {
    data: *mut E,
    layout: Layout,
}

impl<E: Copy> Sparse<E> {
    pub fn new(len: usize) -> Sparse<E> {
        let layout = Layout::array::<E>(len).unwrap();
        // SAFETY: the layout is not empty.
        let data: *mut E = unsafe { std::alloc::alloc_zeroed(layout) }.cast();
        assert!(!data.is_null(), "no address space for {layout:?}");
        Sparse { data, layout }
    }

    pub fn slice(&mut self) -> &mut [E] {
        // SAFETY: allocated with this length; zero bits are a valid float.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.layout.size() / size_of::<E>()) }
    }
}

impl<E> Drop for Sparse<E> {
    fn drop(&mut self) {
        // SAFETY: allocated by new with this layout.
        unsafe { std::alloc::dealloc(self.data.cast(), self.layout) }
    }
}
